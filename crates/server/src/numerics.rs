//! In which numbers a run is computed, from its first operation to its last.
//!
//! A backend that repeats exactly does so for one numeric path: the format of its weights, that of their inputs, and the
//! weights themselves ([`Description::numerics`](tinkrs_backend::Description::numerics)). The path is in the run's record.
//! What another path has computed is never repeated; a run that need not repeat anything may go on, and its record says so.

use tinkrs_types::ModelId;

use crate::Server;
use crate::auth::Owner;
use crate::state::Base;
use crate::store::{Change, LoadedRequest};
use crate::worker::Operation;

impl Server {
    /// Decides whether a run can go on from its snapshot with what its model computes in now.
    ///
    /// # Errors
    ///
    /// Says what to serve the model with instead, if operations would have to be repeated in other numbers.
    pub(crate) fn keep_numerics(
        &self,
        id: &ModelId,
        base: &Base,
        snapshot: Option<i64>,
        requests: &[LoadedRequest],
    ) -> Result<(), String> {
        let now = base.description.numerics();
        let Some((before, owner)) = self.numerics_of(id) else {
            return Ok(());
        };
        match &before {
            Some(before) if *before == now => return Ok(()),
            Some(before) => {
                let depends = |request| self.depends_on_numerics(request, snapshot, owner, id);
                if requests.iter().any(depends) {
                    let why = refusal(&base.name, before, &now);
                    tracing::error!(model.id = %id, why, "a model waits for another server");
                    if let Some(run) = self.registry().runs.get_mut(id) {
                        run.refusal = Some(why.clone());
                    }
                    return Err(why);
                }
                tracing::warn!(
                    model.id = %id,
                    before,
                    now,
                    "a model continues from its snapshot with another numeric path than before"
                );
            }
            // Of an earlier version, which stored none.
            None => {}
        }
        if let Some(run) = self.registry().runs.get_mut(id) {
            run.record.earlier_numerics.extend(before);
            run.record.numerics = Some(now);
            let change = Change::NumericsChanged(run.record.clone());
            self.shared().store.note(change);
        }
        Ok(())
    }

    fn numerics_of(&self, id: &ModelId) -> Option<(Option<String>, Owner)> {
        let registry = self.registry();
        let run = registry.runs.get(id)?;
        Some((run.record.numerics.clone(), run.record.owner))
    }

    /// Whether a request that has ended has changed its run after the last snapshot, in a way that the base model's numbers
    /// are in. A new adapter is drawn from its seed alone.
    fn depends_on_numerics(
        &self,
        request: &LoadedRequest,
        snapshot: Option<i64>,
        owner: Owner,
        id: &ModelId,
    ) -> bool {
        match self.done_since(request, snapshot, owner, id) {
            None | Some(Ok(Operation::Create { .. })) => false,
            Some(Ok(operation)) => operation.changes_run(),
            Some(Err(_)) => true,
        }
    }
}

/// Says what a model has to be served with.
fn refusal(base: &str, before: &str, now: &str) -> String {
    let (path, _) = before.split_once('@').unwrap_or((before, ""));
    let (path_now, _) = now.split_once('@').unwrap_or((now, ""));
    let parts: Vec<&str> = path.split('/').collect();
    let again = match parts[..] {
        [weights, activations, ref rest @ ..] if path != path_now => format!(
            "serve `{base}` again with weights in {weights} (`--quantize`, or a file in that format), \
             `--activations {activations}` and `--kv-cache {}`",
            rest.first().unwrap_or(&"f32"),
        ),
        _ => format!(
            "serve `{base}` again from the files and with the `--quantize` that it had then"
        ),
    };
    format!(
        "it was trained with {before}, and this server has {now}: its operations since the last snapshot would not give the \
         same bits; {again}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_both_paths_and_what_to_serve() {
        let formats = refusal("org/a", "q8_0/int8@12", "f32/f32@34");
        for part in [
            "q8_0/int8@12",
            "f32/f32@34",
            "`org/a`",
            "in q8_0",
            "--activations int8",
            "--kv-cache f32",
        ] {
            assert!(formats.contains(part), "{part}: {formats}");
        }
        let cache = refusal("org/a", "q8_0/int8/bf16@12", "q8_0/int8@12");
        assert!(cache.contains("--kv-cache bf16"), "{cache}");
        let files = refusal("org/a", "f32/f32@12", "f32/f32@34");
        assert!(files.contains("from the files"), "{files}");
    }
}
