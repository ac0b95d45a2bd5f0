//! Requests for samples: how they are read, and how they wait. They are no operations of a model, but are journaled
//! and read again in the same way.

use std::fmt;
use std::mem::size_of;
use std::sync::Arc;

use tinkrs_backend as backend;
use tinkrs_types::sampling::{SampleOptions, Stop};
use tinkrs_types::{InvalidInput, ModelInput, RequestId};
use tinkrs_wire::op::asample::SampleRequest;

use crate::body::read_json;
use crate::error::ApiError;
use crate::places::QueuePlace;
use crate::store::{Digest, Store};
use crate::waiting::{self, Room, Waiting};

/// What a request for samples is called in the journal.
pub(crate) const SAMPLE: &str = "sample";

/// A request for samples that waits until the sampler has use for it.
pub(crate) struct WaitingSample {
    pub(crate) num_samples: u32,
    /// The seed of what is drawn by chance.
    seed: u64,
    digest: Digest,
    /// Its `adapter` and `share` are filled in by the worker.
    request: Waiting<backend::SampleRequest>,
}

impl WaitingSample {
    /// Checks a request, which stays in memory if there is room.
    pub(crate) fn new(
        request: SampleRequest,
        seed: u64,
        digest: Digest,
        room: Room<'_>,
    ) -> Result<Self, InvalidInput> {
        let request = check(request, seed)?;
        let bytes = bytes_of(&request);
        Ok(Self {
            num_samples: request.num_samples,
            seed,
            digest,
            request: Waiting::new(request, bytes, room),
        })
    }

    /// Takes a request that is not in the journal, if there is room for it in memory.
    pub(crate) fn in_memory(request: backend::SampleRequest, room: Room<'_>) -> Option<Self> {
        let (num_samples, seed) = (request.num_samples, request.fallback_seed);
        let bytes = bytes_of(&request);
        let request = Waiting::new(request, bytes, room);
        (!request.is_in_journal()).then_some(Self {
            num_samples,
            seed,
            digest: Digest::default(),
            request,
        })
    }

    /// Returns whether it is in the journal alone.
    pub(crate) fn is_in_journal(&self) -> bool {
        self.request.is_in_journal()
    }

    /// Returns what is to be sampled, from the journal if it is not in memory, and the place for its bytes if it is.
    pub(crate) fn into_request(
        self,
        store: &Store,
        id: &RequestId,
    ) -> Result<(backend::SampleRequest, Option<QueuePlace>), ApiError> {
        match self.request {
            Waiting::InMemory(request, place) => Ok((request, Some(place))),
            Waiting::InJournal => {
                let body = waiting::read_body(store, id, &self.digest)?;
                Ok((check(read_json(&body)?, self.seed)?, None))
            }
        }
    }
}

impl fmt::Debug for WaitingSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingSample")
            .field("num_samples", &self.num_samples)
            .finish_non_exhaustive()
    }
}

/// Returns about how many bytes of memory a request takes.
fn bytes_of(request: &backend::SampleRequest) -> usize {
    let stop = match &request.params.stop {
        None | Some(Stop::Never) => 0,
        Some(Stop::Text(text)) => text.capacity(),
        Some(Stop::AnyText(texts)) => {
            let sizes = texts.iter().map(|text| size_of_val(text) + text.capacity());
            sizes.sum()
        }
        Some(Stop::AnyToken(tokens)) => tokens.capacity() * size_of::<u32>(),
    };
    let targets = request.options.target_prompt_logprobs.as_ref();
    size_of::<backend::SampleRequest>()
        + request.prompt.capacity() * size_of::<u32>()
        + stop
        + request.extras.heap_bytes()
        + targets.map_or(0, waiting::bytes_of_tensor)
}

/// Checks a request, and gives it what is drawn by chance.
fn check(request: SampleRequest, seed: u64) -> Result<backend::SampleRequest, InvalidInput> {
    if request.record_stability_info == Some(true) {
        return Err(InvalidInput::new(
            "record_stability_info",
            true,
            "false: this server has no loss that needs it",
        ));
    }
    let options = SampleOptions {
        prompt_logprobs: request.prompt_logprobs.unwrap_or(false),
        topk_prompt_logprobs: request.topk_prompt_logprobs,
        topk_sample_logprobs: request.topk_sample_logprobs,
        target_prompt_logprobs: request.target_prompt_logprobs,
        prompt_alt_tokens_k: request.prompt_alt_tokens_k,
        prompt_logprobs_last_n: request.prompt_logprobs_last_n,
        record_stability_info: false,
    };
    backend::check_limits(request.num_samples, &request.sampling_params, &options)?;
    Ok(backend::SampleRequest {
        adapter: None,
        prompt: read_prompt(&request.prompt)?,
        num_samples: request.num_samples,
        params: request.sampling_params,
        extras: Arc::default(),
        options,
        fallback_seed: seed,
        share: 0,
    })
}

fn read_prompt(prompt: &ModelInput) -> Result<Vec<u32>, InvalidInput> {
    prompt.to_tokens().ok_or_else(|| {
        let mut chunks = prompt.chunks().iter().map(|chunk| chunk.kind());
        let index = chunks.clone().position(|kind| kind != "encoded_text");
        let index = index.unwrap_or_default();
        InvalidInput::new(
            format!("prompt.chunks[{index}]"),
            chunks.nth(index).unwrap_or("something else"),
            "encoded_text: the models of this server read text only",
        )
    })
}
