//! The names of runs: giving them, and finding runs and checkpoints by them.
//!
//! A name is unique among the runs of its owner, and names of other owners do not exist. A client gives one with
//! the label `name`; a run without it gets one that is made of its id. No client fails because of a name: one that
//! is taken gets a number, except that a run that continues the run of that name takes it over, and the earlier
//! run gets the number, whether it is still open or not. A run continues another one if it starts from a
//! checkpoint of that run, or if both have the same label `resume_id`: then they are attempts of one training, and
//! the name also stands for what the earlier ones have saved.

use tinkrs_types::{
    CheckpointKind, CheckpointRef, ModelId, NAME_LABEL, RESUME_LABEL, RunName, TinkerPath,
    UserMetadata,
};

use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::registry::Registry;
use crate::registry::records::RunRecord;

/// What a new run is called.
pub(crate) struct Naming {
    pub(crate) name: RunName,
    /// The run that had the name before, as it is to be from now on.
    pub(crate) renamed: Option<RunRecord>,
}

impl Registry {
    /// Finds the run that has a name in its record.
    fn holder_of(&self, owner: Owner, name: &RunName) -> Result<Option<ModelId>, ApiError> {
        // What is in memory is newer, or not stored yet.
        let mut own = self.runs.values().filter(|run| run.record.owner == owner);
        if let Some(run) = own.find(|run| run.record.name.as_ref() == Some(name)) {
            return Ok(Some(run.record.id.clone()));
        }
        let stored = self.store().run_named(owner, name)?;
        let is_current = |id: &ModelId| {
            let run = self.runs.get(id);
            run.is_none_or(|run| run.record.name.as_ref() == Some(name))
        };
        Ok(stored.filter(is_current))
    }

    fn free_name(&self, owner: Owner, name: &RunName) -> Result<RunName, ApiError> {
        for number in 2.. {
            let numbered = name.numbered(number);
            if self.holder_of(owner, &numbered)?.is_none() {
                return Ok(numbered);
            }
        }
        unreachable!("there are more numbers than runs")
    }

    /// Finds the name of a new run. `from` is the run whose checkpoint it goes on from.
    pub(crate) fn name_run(
        &mut self,
        owner: Owner,
        id: &ModelId,
        labels: Option<&UserMetadata>,
        from: Option<&ModelId>,
    ) -> Result<Naming, ApiError> {
        let given = labels.and_then(|labels| RunName::from_label(labels.get(NAME_LABEL)?));
        let name = given.unwrap_or_else(|| RunName::made_up(id));
        let Some(holder) = self.holder_of(owner, &name)? else {
            let renamed = None;
            return Ok(Naming { name, renamed });
        };
        let free = self.free_name(owner, &name)?;
        let mut record = self.run(owner, &holder)?.record.clone();
        let is_attempt = resume_id(labels).is_some_and(|id| record.resume_id() == Some(id));
        if from == Some(&holder) || is_attempt {
            set_name(&mut record, free);
            let renamed = Some(record);
            return Ok(Naming { name, renamed });
        }
        Ok(Naming {
            name: free,
            renamed: None,
        })
    }

    /// Lists the attempts of the training that a run is one of. One that is not stored yet is left out: it has saved
    /// nothing.
    fn attempts(&self, run: &RunRecord) -> Result<Vec<ModelId>, ApiError> {
        match run.resume_id() {
            Some(resume_id) => Ok(self.store().runs_resuming(run.owner, resume_id)?),
            None => Ok(vec![run.id.clone()]),
        }
    }

    /// Finds a run by its id or its name. What is neither stays as it is: there is no such run.
    pub(crate) fn run_id(&self, owner: Owner, text: &str) -> Result<ModelId, ApiError> {
        let id = ModelId::new(text);
        // Only an id has a colon.
        let Ok(name) = text.parse::<RunName>() else {
            return Ok(id);
        };
        if let Some(found) = self.holder_of(owner, &name)? {
            return Ok(found);
        }
        let unnamed = self.store().unnamed_runs_of(owner)?;
        let mut unnamed = unnamed.into_iter();
        let made_up = unnamed.find(|run| RunName::made_up(run) == name);
        Ok(made_up.unwrap_or(id))
    }
}

fn resume_id(labels: Option<&UserMetadata>) -> Option<&str> {
    labels?.get(RESUME_LABEL).map(String::as_str)
}

impl RunRecord {
    fn resume_id(&self) -> Option<&str> {
        resume_id(self.user_metadata.as_ref())
    }
}

/// Gives a run a name. A label that said another one follows.
pub(crate) fn set_name(record: &mut RunRecord, name: RunName) {
    let label = record.user_metadata.as_mut();
    if let Some(label) = label.and_then(|labels| labels.get_mut(NAME_LABEL)) {
        *label = name.to_string();
    }
    record.name = Some(name);
}

impl Server {
    /// Finds the path of a checkpoint that is named by its path or by its run. `kinds` are the kinds that will do,
    /// the best one first.
    pub(crate) fn checkpoint_path(
        &self,
        registry: &Registry,
        owner: Owner,
        text: &str,
        kinds: &[CheckpointKind],
    ) -> Result<TinkerPath, ApiError> {
        let reference: CheckpointRef = text.parse()?;
        let run = registry.run_id(owner, reference.run())?;
        if reference.path().is_some() {
            return Ok(reference.select(&run, &[], kinds)?);
        }
        let missing = || ApiError::not_found(format!("there is no run `{}`", reference.run()));
        let record = registry.find_stored_run(owner, &run)?.ok_or_else(missing)?;
        let saved = |attempt| self.shared().checkpoints.list(owner, Some(attempt));
        if let Ok(path) = reference.select(&run, &saved(&run), kinds) {
            return Ok(path);
        }
        let attempts = registry.attempts(&record)?;
        let checkpoints: Vec<_> = attempts.iter().flat_map(saved).collect();
        Ok(reference.select(&run, &checkpoints, kinds)?)
    }
}
