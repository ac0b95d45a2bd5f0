//! Saving and loading weights.

use std::time::Duration;

use axum::extract::State;
use tinkrs_types::{
    CheckpointKind, ModelId, Promise, SamplingSessionId, TinkerPath, UserMetadata, WeightsInfo,
    check_ttl,
};
use tinkrs_wire::op::forward_backward::Address;
use tinkrs_wire::op::load_weights::LoadWeightsRequest;
use tinkrs_wire::op::save_weights::SaveWeightsRequest;
use tinkrs_wire::op::save_weights_for_sampler::SaveWeightsForSamplerRequest;
use tinkrs_wire::op::weights_info::WeightsInfoRequest;

use super::Plain;
use crate::Server;
use crate::checkpoints::{NewCheckpoint, Saved, check_name};
use crate::error::Refusal;
use crate::extract::{Decoded, Numbered};
use crate::registry::{Registry, Sampler, Weights};
use crate::worker::Operation;

pub(crate) async fn save(
    State(server): State<Server>,
    Numbered { address, request }: Numbered<SaveWeightsRequest>,
) -> Result<Plain<Promise>, Refusal> {
    server.save_weights(&address, request).map(Plain)
}

pub(crate) async fn save_for_sampler(
    State(server): State<Server>,
    Numbered { address, request }: Numbered<SaveWeightsForSamplerRequest>,
) -> Result<Plain<Promise>, Refusal> {
    server
        .save_weights_for_sampler(&address, request)
        .map(Plain)
}

pub(crate) async fn load(
    State(server): State<Server>,
    Numbered { address, request }: Numbered<LoadWeightsRequest>,
) -> Result<Plain<Promise>, Refusal> {
    server.load_weights(&address, request).map(Plain)
}

pub(crate) async fn info(
    State(server): State<Server>,
    Decoded(request): Decoded<WeightsInfoRequest>,
) -> Result<Plain<WeightsInfo>, Refusal> {
    let saved = server.checkpoint(&request.tinker_path.parse()?)?;
    Ok(Plain(saved.info))
}

impl Server {
    /// Finds a checkpoint.
    pub(crate) fn checkpoint(&self, path: &TinkerPath) -> Result<Saved, Refusal> {
        let saved = self.inner().checkpoints.find(path);
        saved.ok_or_else(|| Refusal::not_found(format!("there is no checkpoint `{path}`")))
    }

    fn save_weights(
        &self,
        address: &Address,
        request: Result<SaveWeightsRequest, Refusal>,
    ) -> Result<Promise, Refusal> {
        self.submit(address, |registry| {
            let request = request?;
            // Older clients may leave the name to the server.
            let name = request.path.unwrap_or_else(|| {
                let time = jiff::Timestamp::now().as_millisecond();
                format!("checkpoint-{time}")
            });
            let checkpoint = new_checkpoint(
                registry,
                request.model_id.clone(),
                CheckpointKind::Training,
                &name,
                request.ttl_seconds,
                request.user_metadata,
            )?;
            Ok(Operation::SaveWeights(NewCheckpoint {
                overwrite: Some(request.overwrite),
                ..checkpoint
            }))
        })
    }

    fn save_weights_for_sampler(
        &self,
        address: &Address,
        request: Result<SaveWeightsForSamplerRequest, Refusal>,
    ) -> Result<Promise, Refusal> {
        self.submit(address, |registry| {
            let request = request?;
            match (request.path, request.sampling_session_seq_id) {
                (Some(name), None) => new_checkpoint(
                    registry,
                    request.model_id.clone(),
                    CheckpointKind::Sampler,
                    &name,
                    request.ttl_seconds,
                    request.user_metadata,
                )
                .map(Operation::SaveNamedSampler),
                (None, Some(number)) => {
                    if request.ttl_seconds.is_some() || request.user_metadata.is_some() {
                        return Err(Refusal::bad_request(
                            "`ttl_seconds` and `user_metadata` need a `path`: weights without a \
                             name last as long as their session",
                        ));
                    }
                    self.open_own_sampler(registry, &request.model_id, number)
                }
                _ => Err(Refusal::bad_request(
                    "expected either `path` or `sampling_session_seq_id`",
                )),
            }
        })
    }

    /// Opens a sampling session for weights that only it will use.
    fn open_own_sampler(
        &self,
        registry: &mut Registry,
        model_id: &ModelId,
        number: u64,
    ) -> Result<Operation, Refusal> {
        let run = registry.run(model_id)?;
        let (session, base) = (run.session.clone(), run.base.clone());
        let sampler = SamplingSessionId::in_session(&session, number);
        if registry.samplers.contains_key(&sampler) {
            return Err(Refusal::bad_request(format!(
                "`sampling_session_seq_id`: {number} is taken by another sampling session"
            )));
        }
        let folder = self.inner().checkpoints.sampler_folder(sampler.as_str());
        let weights = Weights {
            base,
            adapter: Some(folder.clone()),
            path: None,
        };
        registry
            .samplers
            .insert(sampler.clone(), Sampler::new(session, weights));
        Ok(Operation::SaveSampler { sampler, folder })
    }

    fn load_weights(
        &self,
        address: &Address,
        request: Result<LoadWeightsRequest, Refusal>,
    ) -> Result<Promise, Refusal> {
        let model_id = ModelId::new(address.model_id.as_str());
        self.submit(address, |registry| {
            let request = request?;
            if request.weights_access_token.is_some() {
                return Err(Refusal::bad_request(
                    "`weights_access_token`: this server has no other accounts",
                ));
            }
            if request.session_id.is_some()
                || request.model_seq_id.is_some()
                || request.base_model.is_some()
                || request.user_metadata.is_some()
                || request.optimizer_config.is_some()
            {
                return Err(Refusal::bad_request(
                    "`session_id`, `model_seq_id`, `base_model`, `user_metadata` and \
                     `optimizer_config` do not go with `model_id`",
                ));
            }
            let path: TinkerPath = request.path.parse()?;
            path.require(CheckpointKind::Training)?;
            // The checkpoint may be the result of an operation that has not run yet; what can be
            // known now is whether it belongs to the same base model.
            if let Some(saved) = self.inner().checkpoints.find(&path) {
                let (theirs, ours) = (&saved.info.base_model, &registry.run(&model_id)?.base.name);
                if theirs != ours {
                    return Err(Refusal::bad_request(format!(
                        "`path`: `{path}` belongs to `{theirs}`, and the model to `{ours}`"
                    )));
                }
            }
            Ok(Operation::LoadWeights {
                path,
                optimizer: request.optimizer,
            })
        })
    }
}

/// Checks what a checkpoint is to be called and how long it is to live.
fn new_checkpoint(
    registry: &mut Registry,
    model_id: ModelId,
    kind: CheckpointKind,
    name: &str,
    ttl_seconds: Option<u64>,
    user_metadata: Option<UserMetadata>,
) -> Result<NewCheckpoint, Refusal> {
    check_name(name)?;
    ttl_seconds.map(check_ttl).transpose()?;
    let info = registry.run(&model_id)?.weights_info();
    Ok(NewCheckpoint {
        path: TinkerPath::new(model_id, kind, name)?,
        info,
        overwrite: None,
        ttl: ttl_seconds.map(Duration::from_secs),
        user_metadata,
    })
}
