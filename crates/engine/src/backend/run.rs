//! A training run behind the traits.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tinkrs_backend::{self as backend, PassProgress, PassRequest, TrainingState};
use tinkrs_types::LoraConfig;
use tinkrs_types::training::{OptimStepOutput, OptimizerParams};

use crate::train::batch::Batch;
use crate::train::pass::Pass;
use crate::{TrainState, TrainingRun, peft};

/// A run, shared with its pass.
pub(super) struct Run(Arc<Mutex<Shared>>);

struct Shared {
    run: TrainingRun,
    /// Counts what a pass that began earlier must not be continued after.
    revision: u64,
}

impl Run {
    pub(super) fn boxed(run: TrainingRun) -> Box<dyn backend::TrainingRun> {
        Box::new(Self(Arc::new(Mutex::new(Shared { run, revision: 0 }))))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        lock(&self.0)
    }
}

/// After a panic the run is as it was before the operation: operations change it at their end.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl backend::TrainingRun for Run {
    fn lora(&self) -> LoraConfig {
        let config = self.lock().run.lora_config();
        config.expect("runs of a backend train adapters")
    }

    fn begin(&mut self, request: PassRequest) -> Result<Box<dyn backend::Pass>, backend::Error> {
        let mut shared = self.lock();
        let model = shared.run.model();
        let batch = Batch::new(model, request.data.into(), request.objective)?;
        let pass = shared.run.begin(batch, request.backward);
        shared.revision += 1;
        Ok(Box::new(RunPass {
            shared: Arc::clone(&self.0),
            revision: shared.revision,
            pass: Some(pass),
        }))
    }

    fn optim_step(&mut self, params: &OptimizerParams) -> Result<OptimStepOutput, backend::Error> {
        let mut shared = self.lock();
        shared.revision += 1;
        Ok(shared.run.optim_step(params.clone())?)
    }

    fn state(&self) -> Box<dyn TrainingState> {
        Box::new(self.lock().run.state())
    }

    fn save_state(&self, file: &Path) -> Result<(), backend::Error> {
        Ok(self.lock().run.save_state(file)?)
    }

    fn adapter(&self) -> backend::Adapter {
        let adapter = self.lock().run.adapter();
        backend::Adapter::new(adapter.expect("runs of a backend train adapters"))
    }

    fn save_adapter(&self, folder: &Path, base_model: &str) -> Result<(), backend::Error> {
        let shared = self.lock();
        let adapter = shared.run.to_peft(base_model);
        let adapter = adapter.expect("runs of a backend train adapters");
        let config = shared.run.model().config();
        Ok(peft::save_as(
            folder,
            &adapter,
            config,
            peft::HeadName::Tinker,
        )?)
    }
}

impl TrainingState for TrainState {
    fn write(&self, file: &Path) -> Result<(), backend::Error> {
        Ok(Self::write(self, file)?)
    }
}

struct RunPass {
    shared: Arc<Mutex<Shared>>,
    /// The run's, when the pass began.
    revision: u64,
    /// `None` once the pass has ended.
    pass: Option<Pass>,
}

impl backend::Pass for RunPass {
    fn advance(&mut self, max_tokens: usize) -> Result<PassProgress, backend::Error> {
        let mut shared = lock(&self.shared);
        // Taken out: after an error the pass cannot be continued.
        let pass = self.pass.take();
        let Some(mut pass) = pass.filter(|_| shared.revision == self.revision) else {
            return Err(backend::Error::bad_request(
                "the pass has ended, or its run was changed since it began",
            ));
        };
        if shared.run.advance(&mut pass, max_tokens)? {
            return Ok(PassProgress::Done(shared.run.finish(pass)?));
        }
        self.pass = Some(pass);
        Ok(PassProgress::Continue)
    }
}
