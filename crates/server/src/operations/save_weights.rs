//! `save_weights`, `save_weights_for_sampler` and `save_weights_external`.

use std::time::Duration;

use jiff::Timestamp;
use tinkrs_types::protocol::check_ttl;
use tinkrs_types::{CheckpointKind, SamplingSessionId, TinkerPath, UserMetadata};
use tinkrs_wire::op::save_weights::SaveWeightsRequest;
use tinkrs_wire::op::save_weights_external::SaveWeightsExternalRequest;
use tinkrs_wire::op::save_weights_for_sampler::SaveWeightsForSamplerRequest;

use super::{OfModel, OperationKind, Prepare};
use crate::api::models::check_labels;
use crate::body::read_json;
use crate::checkpoints::{NewCheckpoint, check_name};
use crate::error::ApiError;
use crate::worker::Operation;

pub(crate) const SAVE_WEIGHTS: OperationKind = OperationKind::new("save_weights", |body, _| {
    read_json::<SaveWeightsRequest>(body).map(|request| Box::new(request) as Box<dyn Prepare>)
});

pub(crate) const SAVE_WEIGHTS_FOR_SAMPLER: OperationKind = OperationKind {
    // Official clients draw a new `sampling_session_seq_id` when they repeat an unnamed save.
    repeats_vary: true,
    ..OperationKind::new("save_weights_for_sampler", |body, _| {
        let request = read_json::<SaveWeightsForSamplerRequest>(body)?;
        Ok(Box::new(request))
    })
};

pub(crate) const SAVE_WEIGHTS_EXTERNAL: OperationKind =
    OperationKind::new("save_weights_external", |body, _| {
        let request = read_json::<SaveWeightsExternalRequest>(body)?;
        Ok(Box::new(request))
    });

impl Prepare for SaveWeightsRequest {
    fn prepare(self: Box<Self>, model: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        // Older clients may leave the name to the server.
        let name = self.path.unwrap_or_else(|| {
            let time = Timestamp::now().as_millisecond();
            format!("checkpoint-{time}")
        });
        let checkpoint = model.new_checkpoint(
            CheckpointKind::Training,
            &name,
            self.ttl_seconds,
            self.user_metadata,
        )?;
        Ok(Operation::SaveWeights(NewCheckpoint {
            overwrite: Some(self.overwrite),
            ..checkpoint
        }))
    }
}

impl Prepare for SaveWeightsForSamplerRequest {
    fn prepare(self: Box<Self>, model: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        match (self.path, self.sampling_session_seq_id) {
            (Some(name), None) => {
                let (ttl, labels) = (self.ttl_seconds, self.user_metadata);
                let checkpoint =
                    model.new_checkpoint(CheckpointKind::Sampler, &name, ttl, labels)?;
                Ok(Operation::SaveNamedSampler(checkpoint))
            }
            (None, Some(seq_id)) => {
                if self.ttl_seconds.is_some() || self.user_metadata.is_some() {
                    return Err(ApiError::bad_request(
                        "`ttl_seconds` and `user_metadata` need a `path`: weights without a name \
                         last as long as their session",
                    ));
                }
                let run = model.registry.run(model.owner, model.model_id)?;
                let sampler = SamplingSessionId::in_session(&run.record.session, seq_id);
                Ok(Operation::SaveSampler(sampler))
            }
            _ => Err(ApiError::bad_request(
                "expected either `path` or `sampling_session_seq_id`",
            )),
        }
    }
}

impl Prepare for SaveWeightsExternalRequest {
    fn prepare(self: Box<Self>, model: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        let recipients = self.age_encryption_recipients.unwrap_or_default();
        if !recipients.is_empty() {
            return Err(ApiError::bad_request(
                "`age_encryption_recipients`: this server does not encrypt checkpoints; leave it out",
            ));
        }
        let (name, ttl) = (self.path, self.ttl_seconds);
        let checkpoint = model.new_checkpoint(CheckpointKind::External, &name, ttl, None)?;
        Ok(Operation::SaveExternal(checkpoint))
    }
}

impl OfModel<'_> {
    /// Checks what a checkpoint is to be called and how long it is to live.
    fn new_checkpoint(
        &mut self,
        kind: CheckpointKind,
        name: &str,
        ttl_seconds: Option<u64>,
        user_metadata: Option<UserMetadata>,
    ) -> Result<NewCheckpoint, ApiError> {
        check_name(name)?;
        if let Some(labels) = &user_metadata {
            let sizes = labels.iter().map(|(name, text)| name.len() + text.len());
            check_labels("user_metadata", sizes)?;
        }
        ttl_seconds.map(check_ttl).transpose()?;
        let run = self.registry.run(self.owner, self.model_id)?;
        Ok(NewCheckpoint {
            owner: self.owner,
            path: TinkerPath::new(self.model_id.clone(), kind, name)?,
            info: run.record.weights_info(),
            overwrite: None,
            ttl: ttl_seconds.map(Duration::from_secs),
            user_metadata,
        })
    }
}
