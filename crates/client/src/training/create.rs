//! Creating a model to train: afresh, or from a checkpoint.

use super::client::TrainingClient;
use super::request::BoxFuture;
use crate::auth::Secret;
use crate::connection::call::Call;
use crate::connection::policy::Policy;
use crate::connection::transport::Traffic;
use crate::future::QueueObserver;
use crate::future::poll::{self, PollTarget};
use crate::future::result_size;
use crate::session::Session;
use crate::{Error, ServiceClient};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};
use std::future::IntoFuture;
use std::sync::Arc;
use tinkrs_types::protocol::{Promise, RequestType};
use tinkrs_types::rest::WeightsInfo;
use tinkrs_types::training::OptimizerConfig;
use tinkrs_types::{
    CheckpointKind, CheckpointRef, LoraConfig, ModelId, NAME_LABEL, RESUME_LABEL, TinkerPath,
    UserMetadata,
};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::create_model::{CreateModelRequest, CreateModelResult};
use tinkrs_wire::op::load_weights::LoadWeightsRequest;
use tinkrs_wire::op::weights_info::WeightsInfoRequest;
use tokio::time::Instant;

const CREATE: &str = "create_model";
const RESUME: &str = "create_training_client_from_state";

/// A model that has been described but not created. Await it to create it.
#[derive(Clone, Debug)]
#[must_use = "nothing is created until this is awaited"]
pub struct CreateLoraTrainingClient {
    service: ServiceClient,
    base_model: String,
    lora: LoraConfig,
    optimizer: OptimizerConfig,
    labels: Labels,
}

/// A model to go on from a checkpoint with. Await it to create it.
#[derive(Clone, Debug)]
#[must_use = "nothing is created until this is awaited"]
pub struct CreateTrainingClientFromState {
    service: ServiceClient,
    checkpoint: CheckpointRef,
    with_optimizer: bool,
    optimizer: Option<OptimizerConfig>,
    labels: Labels,
    base_model: Option<String>,
    weights_access_token: Option<Secret>,
}

/// The labels of a run.
#[derive(Clone, Debug, Default)]
struct Labels {
    metadata: Option<UserMetadata>,
    name: Option<String>,
    resume_id: Option<String>,
}

impl Labels {
    fn into_json(self) -> Option<Map<String, Value>> {
        let mut metadata = self.metadata;
        for (label, value) in [(NAME_LABEL, self.name), (RESUME_LABEL, self.resume_id)] {
            if let Some(value) = value {
                let metadata = metadata.get_or_insert_default();
                metadata.insert(label.to_owned(), value);
            }
        }
        let members = metadata?.into_iter();
        Some(members.map(|(name, value)| (name, value.into())).collect())
    }
}

impl ServiceClient {
    /// Creates a model to train a low-rank adapter of.
    pub fn create_lora_training_client(
        &self,
        base_model: impl Into<String>,
    ) -> CreateLoraTrainingClient {
        CreateLoraTrainingClient {
            service: self.clone(),
            base_model: base_model.into(),
            lora: LoraConfig::default(),
            optimizer: OptimizerConfig::AdamW,
            labels: Labels::default(),
        }
    }

    /// Creates a model that continues from a checkpoint's weights with a fresh optimizer. The checkpoint is a
    /// [`TinkerPath`], or a [`CheckpointRef`] such as `my-run@120`.
    pub fn create_training_client_from_state(
        &self,
        checkpoint: impl Into<CheckpointRef>,
    ) -> CreateTrainingClientFromState {
        CreateTrainingClientFromState {
            service: self.clone(),
            checkpoint: checkpoint.into(),
            with_optimizer: false,
            optimizer: None,
            labels: Labels::default(),
            base_model: None,
            weights_access_token: None,
        }
    }

    /// Creates a model that continues exactly where a checkpoint was saved, optimizer included. The checkpoint is a
    /// [`TinkerPath`], or a [`CheckpointRef`] such as `my-run@120`.
    pub fn create_training_client_from_state_with_optimizer(
        &self,
        checkpoint: impl Into<CheckpointRef>,
    ) -> CreateTrainingClientFromState {
        CreateTrainingClientFromState {
            with_optimizer: true,
            ..self.create_training_client_from_state(checkpoint)
        }
    }
}

impl CreateLoraTrainingClient {
    /// Sets the adapter's rank. The default is 32.
    pub fn rank(mut self, rank: u32) -> Self {
        self.lora.rank = rank;
        self
    }

    /// Seeds the adapter's first weights. The default is a random seed.
    pub fn seed(mut self, seed: i64) -> Self {
        self.lora.seed = Some(seed);
        self
    }

    /// Trains the MLP layers. The default is true.
    pub fn train_mlp(mut self, train: bool) -> Self {
        self.lora.train_mlp = train;
        self
    }

    /// Trains the attention layers. The default is true.
    pub fn train_attn(mut self, train: bool) -> Self {
        self.lora.train_attn = train;
        self
    }

    /// Trains the unembedding. The default is true.
    pub fn train_unembed(mut self, train: bool) -> Self {
        self.lora.train_unembed = train;
        self
    }

    /// Sets the optimizer. The default is AdamW.
    pub fn optimizer(mut self, optimizer: OptimizerConfig) -> Self {
        self.optimizer = optimizer;
        self
    }

    /// Labels the run.
    pub fn user_metadata(mut self, metadata: UserMetadata) -> Self {
        self.labels.metadata = Some(metadata);
        self
    }

    /// Names the run, with the label `name`. `tinkrs serve` finds the run and its checkpoints by it: `my-run`,
    /// `my-run@120`, `my-run@latest`. If another run of the same owner has the name, this one gets a number behind it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.labels.name = Some(name.into());
        self
    }

    /// Says which training this is an attempt of, with the label `resume_id`: any text that is the same for a run
    /// and for those that resume it. On `tinkrs serve` the newest attempt has the name.
    pub fn resume_id(mut self, id: impl Into<String>) -> Self {
        self.labels.resume_id = Some(id.into());
        self
    }

    async fn create(self) -> Result<TrainingClient, Error> {
        self.lora.check()?;
        let session = self.service.session(CREATE).await?;
        let request = CreateModelRequest {
            session_id: session.id.clone(),
            model_seq_id: session.next_model(),
            base_model: self.base_model,
            user_metadata: self.labels.into_json(),
            lora_config: Some(self.lora),
            optimizer_config: self.optimizer,
        };
        create_model(session, request).await
    }
}

impl IntoFuture for CreateLoraTrainingClient {
    type Output = Result<TrainingClient, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.create())
    }
}

impl CreateTrainingClientFromState {
    /// Sets the optimizer, for a model whose optimizer starts afresh. The default is AdamW.
    pub fn optimizer(mut self, optimizer: OptimizerConfig) -> Self {
        self.optimizer = Some(optimizer);
        self
    }

    /// Labels the run.
    pub fn user_metadata(mut self, metadata: UserMetadata) -> Self {
        self.labels.metadata = Some(metadata);
        self
    }

    /// Names the run, with the label `name`. `tinkrs serve` finds the run and its checkpoints by it: `my-run`,
    /// `my-run@120`, `my-run@latest`. If another run of the same owner has the name, this one gets a number behind it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.labels.name = Some(name.into());
        self
    }

    /// Says which training this is an attempt of, with the label `resume_id`: any text that is the same for a run
    /// and for those that resume it. On `tinkrs serve` the newest attempt has the name.
    pub fn resume_id(mut self, id: impl Into<String>) -> Self {
        self.labels.resume_id = Some(id.into());
        self
    }

    /// Trains on another base model than the checkpoint's, compatible with it.
    pub fn base_model(mut self, name: impl Into<String>) -> Self {
        self.base_model = Some(name.into());
        self
    }

    /// Reads another account's checkpoint with that account's credential.
    pub fn weights_access_token(mut self, token: impl Into<Secret>) -> Self {
        self.weights_access_token = Some(token.into());
        self
    }

    async fn create(self) -> Result<TrainingClient, Error> {
        let rest = self.service.create_rest_client();
        let kinds = [CheckpointKind::Training];
        let path = rest.resolve_checkpoint(&self.checkpoint, &kinds).await?;
        path.require(CheckpointKind::Training)?;
        let session = self.service.session(RESUME).await?;
        if session
            .connection
            .server
            .config
            .create_model_via_load_weights
        {
            return self.create_by_loading(session, path).await;
        }
        let info = self.weights_info(&path).await?;
        let lora = LoraConfig {
            rank: info.lora_rank.unwrap_or(LoraConfig::default().rank),
            seed: None,
            train_unembed: info.train_unembed.unwrap_or(true),
            train_mlp: info.train_mlp.unwrap_or(true),
            train_attn: info.train_attn.unwrap_or(true),
        };
        let optimizer = if self.with_optimizer {
            Some(info.optimizer_config)
        } else {
            self.optimizer
        };
        let request = CreateModelRequest {
            session_id: session.id.clone(),
            model_seq_id: session.next_model(),
            base_model: self.base_model.unwrap_or(info.base_model),
            user_metadata: self.labels.into_json(),
            lora_config: Some(lora),
            optimizer_config: optimizer.unwrap_or_default(),
        };
        let client = create_model(session, request).await?;
        let mut load = client.load_state(path);
        if self.with_optimizer {
            load = load.with_optimizer();
        }
        if let Some(token) = self.weights_access_token {
            load = load.weights_access_token(token);
        }
        load.await?;
        Ok(client)
    }

    /// Asks about the checkpoint with the credential that may read it.
    async fn weights_info(&self, path: &TinkerPath) -> Result<WeightsInfo, Error> {
        let service = match &self.weights_access_token {
            None => self.service.clone(),
            Some(token) => {
                let mut options = self.service.inner.options.clone();
                options.api_key = Some(token.clone());
                crate::ServiceClientBuilder { options }.build()
            }
        };
        let request = WeightsInfoRequest {
            tinker_path: path.to_string(),
        };
        let call = Call::new(&endpoint::WEIGHTS_INFO).json(&request);
        service.connection(RESUME).await?.json(call).await
    }

    /// Creates the model with a single request, on servers that offer it.
    async fn create_by_loading(
        self,
        session: Arc<Session>,
        path: TinkerPath,
    ) -> Result<TrainingClient, Error> {
        let number = session.next_model();
        let model_id = ModelId::in_session(&session.id, number);
        let request = LoadWeightsRequest {
            model_id: None,
            seq_id: None,
            session_id: Some(session.id.clone()),
            model_seq_id: Some(number),
            base_model: self.base_model,
            user_metadata: self.labels.into_json(),
            path: path.to_string(),
            optimizer: self.with_optimizer,
            optimizer_config: if self.with_optimizer {
                None
            } else {
                self.optimizer
            },
            weights_access_token: self
                .weights_access_token
                .map(|token| token.expose().to_owned()),
        };
        let call = Call::new(&endpoint::LOAD_WEIGHTS)
            .named(RESUME)
            .json(&request);
        let observer = QueueObserver::training(model_id.as_str());
        let fetch = fetch(&session, call, RESUME, RequestType::LoadWeights, &observer);
        let IgnoredAny = session.connection.lifecycle.reporting(fetch).await?;
        Ok(TrainingClient::new(session, model_id))
    }
}

impl IntoFuture for CreateTrainingClientFromState {
    type Output = Result<TrainingClient, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.create())
    }
}

async fn create_model(
    session: Arc<Session>,
    request: CreateModelRequest,
) -> Result<TrainingClient, Error> {
    let call = Call::new(&endpoint::CREATE_MODEL)
        .json(&request)
        .policy(Policy::TEN_TIMES);
    let observer = QueueObserver::training(request.base_model.as_str());
    let fetch = fetch(&session, call, CREATE, RequestType::CreateModel, &observer);
    let created: CreateModelResult = session.connection.lifecycle.reporting(fetch).await?;
    Ok(TrainingClient::new(session, created.model_id))
}

async fn fetch<T: DeserializeOwned>(
    session: &Session,
    mut call: Call,
    operation: &'static str,
    request_type: RequestType,
    observer: &QueueObserver,
) -> Result<T, Error> {
    call.traffic = Traffic::Training;
    let start = Instant::now();
    let promise: Promise = session.connection.json(call).await?;
    let target = PollTarget {
        operation,
        request_id: &promise.request_id,
        request_type,
        roundtrip: start.elapsed(),
        observer,
        size_known: false,
        max_result_bytes: result_size::BASE_BYTES,
    };
    poll::wait_json(&session.connection, &target).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_label_beside_the_others() {
        let labels = |name: Option<&str>| Labels {
            metadata: Some(UserMetadata::from([("owner".to_owned(), "ada".to_owned())])),
            name: name.map(str::to_owned),
            resume_id: None,
        };
        let json = |labels: Labels| Value::from(labels.into_json().unwrap()).to_string();
        assert_eq!(json(labels(None)), r#"{"owner":"ada"}"#);
        assert_eq!(json(labels(Some("a"))), r#"{"name":"a","owner":"ada"}"#);
        assert_eq!(Labels::default().into_json(), None);
    }

    #[test]
    fn another_account_s_credential_is_not_shown() {
        let path: TinkerPath = "tinker://run:train:0/weights/last".parse().unwrap();
        let request = ServiceClient::builder()
            .build()
            .create_training_client_from_state(path)
            .weights_access_token("tml-hidden");
        let shown = format!("{request:?}");
        assert!(!shown.contains("hidden"), "{shown}");
    }
}
