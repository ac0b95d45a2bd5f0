//! The client of one sampling session.

use super::completion_feed::CompletionFeed;
use super::retry::{Progress, RetryConfig};
use crate::Error;
use crate::connection::call::Call;
use crate::future::QueueObserver;
use crate::session::Session;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tinkrs_types::protocol::SAMPLE_SEQ_BLOCK;
use tinkrs_types::rest::SamplerInfo;
use tinkrs_types::{SamplingSessionId, SessionId};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::join_sampling_session::{
    JoinSamplingSessionRequest, JoinSamplingSessionResponse,
};
use tokio::sync::{OnceCell, Semaphore};

/// Samples from a model or a checkpoint.
///
/// A client is a handle: cloning it is cheap, and clones share their limits.
///
/// ```no_run
/// # async fn run(client: tinkrs::SamplingClient) -> Result<(), tinkrs::Error> {
/// use tinkrs::{ModelInput, SamplingParams};
///
/// let prompt = ModelInput::from_tokens([1, 2, 3]);
/// let output = client.sample(prompt, SamplingParams::new(32)).num_samples(4).await?;
/// for sequence in &output.sequences {
///     println!("{:?}", sequence.tokens);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SamplingClient {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) session: Arc<Session>,
    pub(crate) id: SamplingSessionId,
    pub(crate) options: SamplerOptions,
    pub(crate) observer: QueueObserver,
    pub(crate) progress: Progress,
    /// Bounds the samples under way; `None` if the server's feed makes that needless.
    pub(crate) slots: Option<Arc<Semaphore>>,
    /// Which client of the sampling session this is; 0 is the original.
    clone_id: OnceCell<u64>,
    next_sample: AtomicU64,
    feed: OnceLock<Arc<CompletionFeed>>,
}

/// How a client samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct SamplerOptions {
    /// Records with every sample what the loss `stable_reinforce` needs.
    pub(crate) record_stability_info: bool,
    pub(crate) retry: RetryConfig,
}

impl SamplingClient {
    /// Makes the first client of a sampling session.
    pub(crate) fn original(
        session: Arc<Session>,
        id: SamplingSessionId,
        options: SamplerOptions,
    ) -> Self {
        Self::new(session, id, options, OnceCell::new_with(Some(0)))
    }

    /// Makes a further client of a sampling session, which gets its number before its first
    /// sample.
    pub(crate) fn cloned(
        session: Arc<Session>,
        id: SamplingSessionId,
        options: SamplerOptions,
    ) -> Self {
        Self::new(session, id, options, OnceCell::new())
    }

    fn new(
        session: Arc<Session>,
        id: SamplingSessionId,
        options: SamplerOptions,
        clone_id: OnceCell<u64>,
    ) -> Self {
        let config = &session.connection.server.config;
        let slots = (!config.sample_use_retrieve_futures).then(|| {
            Arc::new(Semaphore::new(
                config
                    .sample_max_concurrent_requests
                    .clamp(1, Semaphore::MAX_PERMITS),
            ))
        });
        let inner = Inner {
            observer: QueueObserver::sampling(id.as_str()),
            progress: Progress::default(),
            slots,
            clone_id,
            next_sample: AtomicU64::new(0),
            feed: OnceLock::new(),
            session,
            id,
            options,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Makes a client of the same sampling session that retries in another way.
    ///
    /// It is a client of its own, with its own limit of samples under way.
    #[must_use]
    pub fn with_retry_config(&self, retry: RetryConfig) -> Self {
        let options = SamplerOptions {
            retry,
            ..self.inner.options.clone()
        };
        let Inner { session, id, .. } = &*self.inner;
        Self::cloned(Arc::clone(session), id.clone(), options)
    }

    /// Returns the id of the sampling session.
    pub fn sampling_session_id(&self) -> &SamplingSessionId {
        &self.inner.id
    }

    /// Returns the session that the sampling session belongs to.
    pub fn session_id(&self) -> &SessionId {
        &self.inner.session.id
    }

    /// Asks the server which model this samples from.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn get_info(&self) -> Result<SamplerInfo, Error> {
        let call = Call::at(&endpoint::GET_SAMPLER, &self.inner.id);
        let connection = &self.inner.session.connection;
        connection.lifecycle.reporting(connection.json(call)).await
    }

    /// Asks the server for the name of the model that this samples from.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn get_base_model(&self) -> Result<String, Error> {
        Ok(self.get_info().await?.base_model)
    }

    /// Returns the connection to the server.
    #[cfg(feature = "tokenizers")]
    pub(crate) fn connection(&self) -> Arc<crate::connection::Connection> {
        Arc::clone(&self.inner.session.connection)
    }
}

impl Inner {
    /// Returns which client of the sampling session this is, asking the server if it wants to
    /// be asked.
    pub(crate) async fn clone_id(&self) -> Result<u64, Error> {
        if let Some(number) = self.clone_id.get() {
            return Ok(*number);
        }
        let number = || async {
            let connection = &self.session.connection;
            if !connection.server.config.sample_join_sampling_session {
                return Ok(fastrand::u64(1..=SAMPLE_SEQ_BLOCK));
            }
            let request = JoinSamplingSessionRequest {
                sampling_session_id: self.id.clone(),
            };
            let call = Call::new(&endpoint::JOIN_SAMPLING_SESSION).json(&request);
            let joined: JoinSamplingSessionResponse = connection.json(call).await?;
            Ok(joined.client_counter)
        };
        // Joining is done once and takes a kilobyte, which no sample should carry around.
        let joined = Box::pin(self.clone_id.get_or_try_init(number));
        joined.await.copied()
    }

    /// Takes the next number among this client's samples.
    pub(crate) fn next_sample(&self) -> u64 {
        self.next_sample.fetch_add(1, Ordering::AcqRel)
    }

    /// Returns the feed of completions, if the server wants it used.
    pub(crate) fn feed(self: &Arc<Self>, clone_id: u64) -> Option<Arc<CompletionFeed>> {
        let connection = &self.session.connection;
        if !connection.server.config.sample_use_retrieve_futures {
            return None;
        }
        let feed = self.feed.get_or_init(|| {
            CompletionFeed::start(Arc::clone(connection), self.id.clone(), clone_id)
        });
        Some(Arc::clone(feed))
    }
}
