//! Training runs, checkpoints and samplers, as the metadata endpoints list them.

mod checkpoint;
mod cursor;
mod sampler;
mod training_run;

pub use checkpoint::{
    Checkpoint, CheckpointPage, CopiedWeights, ExternalWeightsUrls, ImportedWeights, WeightsInfo,
};
pub use cursor::Cursor;
pub use sampler::SamplerInfo;
pub use training_run::{TrainingRun, TrainingRunPage};
