use super::client::RestClient;
use crate::Error;
use futures_core::Stream;
use std::pin::pin;
use tinkrs_types::rest::TrainingRun;
use tinkrs_types::{CheckpointKind, CheckpointRef, ModelId, TinkerPath};

impl RestClient {
    /// Finds the path of a checkpoint that is named by its run, such as `my-run@120`. `kinds` are the kinds that
    /// will do, the best one first. A path is returned as it is, without a question to the server.
    ///
    /// This works with every server: runs and checkpoints are listed. `tinkrs serve` also takes such names wherever
    /// it takes a path.
    ///
    /// # Errors
    /// If there is no such run or checkpoint, or the server cannot be asked.
    ///
    /// ```no_run
    /// # async fn example(rest: tinkrs::RestClient) -> Result<(), tinkrs::Error> {
    /// let kinds = [tinkrs::CheckpointKind::Sampler];
    /// let path = rest.resolve_checkpoint(&"my-run@latest".parse()?, &kinds).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resolve_checkpoint(
        &self,
        checkpoint: &CheckpointRef,
        kinds: &[CheckpointKind],
    ) -> Result<TinkerPath, Error> {
        if let Some(path) = checkpoint.path() {
            return Ok(path.clone());
        }
        let named = self.find_run(checkpoint.run()).await?;
        let run = match &named {
            Some(named) => named.training_run_id.clone(),
            None => ModelId::new(checkpoint.run()),
        };
        let mut checkpoints = self.list_checkpoints(&run).await?;
        let selected = checkpoint.select(&run, &checkpoints, kinds);
        let resume_id = named.as_ref().and_then(TrainingRun::resume_id);
        let (Some(resume_id), Err(_)) = (resume_id, &selected) else {
            return Ok(selected?);
        };
        // It was resumed, and an earlier attempt may have saved it.
        let mut runs = pin!(self.list_training_runs().all());
        while let Some(earlier) = std::future::poll_fn(|cx| runs.as_mut().poll_next(cx)).await {
            let earlier = earlier?;
            if earlier.resume_id() == Some(resume_id) && earlier.training_run_id != run {
                checkpoints.extend(self.list_checkpoints(&earlier.training_run_id).await?);
            }
        }
        Ok(checkpoint.select(&run, &checkpoints, kinds)?)
    }

    /// Finds the id of one's own run by its name. What is no name of a run is taken for an id.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn resolve_run(&self, name: &str) -> Result<ModelId, Error> {
        let found = self.find_run(name).await?;
        Ok(found.map_or_else(|| ModelId::new(name), |run| run.training_run_id))
    }

    /// Finds one's own run by its name, which has no colon.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn find_run(&self, name: &str) -> Result<Option<TrainingRun>, Error> {
        if name.contains(':') {
            return Ok(None);
        }
        let mut runs = pin!(self.list_training_runs().all());
        while let Some(run) = std::future::poll_fn(|cx| runs.as_mut().poll_next(cx)).await {
            let run = run?;
            if run.name() == Some(name) {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }
}
