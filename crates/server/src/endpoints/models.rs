//! What can be asked for as `model`.

use tinkrs_types::CheckpointKind;
use tinkrs_types::rest::Checkpoint;
use tinkrs_wire::openai::models::ModelCard;

use crate::Server;
use crate::api::sampling::Weights;
use crate::auth::Owner;
use crate::error::ApiError;

/// What the names of recipes' checkpoints have before the number of steps.
const STEP: &str = "step-";

impl Server {
    /// Finds what is meant by `model`: a base model, a run's checkpoint or a path. What `run@latest` is, is decided here.
    pub(crate) fn served_model(&self, owner: Owner, model: &str) -> Result<Weights, ApiError> {
        if self.bases().contains_key(model) {
            return self.weights(&self.registry(), owner, Some(model), None);
        }
        let found = self.weights(&self.registry(), owner, None, Some(model));
        found.map_err(|error| {
            if error.is_unavailable() {
                return error;
            }
            ApiError::not_found(format!(
                "`model`: found `{model}`, expected a base model or a checkpoint for sampling of this key, which \
                 `GET /v1/models` lists: {}",
                error.detail()
            ))
        })
    }

    /// Lists all that an owner can ask for: base models, then runs by name, and their checkpoints by number and by path.
    pub(crate) fn served_models(&self, owner: Owner) -> Result<Vec<ModelCard>, ApiError> {
        let bases = self.bases().values();
        let mut cards: Vec<_> = bases
            .map(|base| self.card(base.name.clone(), &base.name, 0, None))
            .collect();
        for (run, _) in self.runs(owner)? {
            let saved = self.shared().checkpoints.list(owner, Some(&run.id));
            let is_meant = |saved: &&Checkpoint| saved.checkpoint_type == CheckpointKind::Sampler;
            let saved: Vec<_> = saved.iter().filter(is_meant).collect();
            let Some(latest) = saved.iter().max_by_key(|saved| saved.time) else {
                continue;
            };
            let name = run.name();
            let mut add = |id: String, saved: &Checkpoint| {
                let path = saved.tinker_path.to_string();
                let path = (id != path).then_some(path);
                let created = saved.time.as_second();
                cards.push(self.card(id, &run.base_model, created, path));
            };
            add(name.to_string(), latest);
            add(format!("{name}@latest"), latest);
            for saved in &saved {
                let which = saved.tinker_path.name();
                add(format!("{name}@{}", step_of(which).unwrap_or(which)), saved);
                add(saved.tinker_path.to_string(), saved);
            }
        }
        Ok(cards)
    }

    fn card(&self, id: String, base: &str, created: i64, parent: Option<String>) -> ModelCard {
        let context = self.bases().get(base).map(|base| base.description.context);
        ModelCard {
            id,
            object: "model".to_owned(),
            created,
            owned_by: "tinkrs".to_owned(),
            root: base.to_owned(),
            parent,
            max_model_len: context.unwrap_or_default() as u64,
        }
    }
}

/// Returns the number of steps in the name of a recipe's checkpoint, without its zeros.
fn step_of(name: &str) -> Option<&str> {
    let digits = name.strip_prefix(STEP)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let significant = digits.trim_start_matches('0');
    is_number.then_some(if significant.is_empty() {
        "0"
    } else {
        significant
    })
}

#[cfg(test)]
mod tests {
    use super::step_of;

    #[test]
    fn checkpoints_of_recipes_are_known_by_their_steps() {
        assert_eq!(step_of("step-000120"), Some("120"));
        assert_eq!(step_of("step-000000"), Some("0"));
        for other in ["step-", "step-1x", "final", "120"] {
            assert_eq!(step_of(other), None, "{other}");
        }
    }
}
