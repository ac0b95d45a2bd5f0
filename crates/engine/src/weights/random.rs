//! Random weights: a model of any shape without a file, for tests and benchmarks.
//!
//! A tensor depends on the seed and its own name alone, so it is the same whatever was read before.
//! Matrices are scaled by `1 / sqrt(inputs)`, which keeps activations of order one through any
//! number of layers.

use std::sync::Arc;

use super::{Dtype, TensorView, WeightSource};
use crate::model::tensor_table::TensorTable;
use crate::rng::{SplitMix64, fnv1a, mix};
use crate::{Error, ModelConfig};

/// Weights drawn from a seed.
///
/// ```
/// use tinkrs_engine::ModelConfig;
/// use tinkrs_engine::weights::{Dtype, RandomWeights, WeightSource};
///
/// let weights = RandomWeights::new(ModelConfig::tiny_qwen3(), 7, Dtype::F32)?;
/// let norm = weights.tensor("model.norm.weight")?.expect_shape(&[32])?;
/// assert!(norm.to_f32().iter().all(|x| (0.5..1.5).contains(x)));
/// # Ok::<(), tinkrs_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandomWeights {
    config: ModelConfig,
    table: Arc<TensorTable>,
    seed: u64,
    dtype: Dtype,
}

impl RandomWeights {
    /// Makes the weights of a model of the given shape, stored in `dtype`.
    ///
    /// # Errors
    ///
    /// When the configuration contradicts itself.
    pub fn new(config: ModelConfig, seed: u64, dtype: Dtype) -> Result<Self, Error> {
        config.validate()?;
        Ok(Self {
            table: Arc::new(TensorTable::new(&config)),
            config,
            seed,
            dtype,
        })
    }
}

impl WeightSource for RandomWeights {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let Some(shape) = self.table.tensor(name).map(|tensor| tensor.shape.clone()) else {
            return Err(Error::MissingTensor {
                tensor: name.to_owned(),
                origin: format!("a random {:?} model", self.config.architecture),
            });
        };
        // A uniform variable on [-√3, √3] has variance one.
        let root3 = 3f32.sqrt();
        let (centre, spread) = if name.ends_with("norm.weight") {
            (1.0, 0.2)
        } else if shape.len() == 1 {
            (0.0, 0.2)
        } else {
            let inputs = shape.last().copied().unwrap_or(1);
            (0.0, root3 / (inputs as f32).sqrt())
        };
        let mut rng = SplitMix64::new(mix(self.seed ^ fnv1a(0, name)));
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| centre + spread * (2.0 * rng.unit() - 1.0))
            .collect();
        TensorView::from_f32(name, self.dtype, shape, &values)
    }

    fn precision(&self) -> Dtype {
        self.dtype
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::tensor_shapes;

    #[test]
    fn every_listed_tensor_exists_with_its_shape() {
        for config in ModelConfig::tiny_models() {
            let weights = RandomWeights::new(config.clone(), 1, Dtype::Bf16).unwrap();
            for (name, shape) in tensor_shapes(&config) {
                let tensor = weights.tensor(&name).unwrap().expect_shape(&shape).unwrap();
                assert_eq!(tensor.dtype(), Dtype::Bf16);
                assert!(tensor.to_f32().iter().all(|x| x.is_finite()), "{name}");
            }
        }
    }

    #[test]
    fn tensors_depend_on_seed_and_name_only() {
        let name = |layer| format!("model.layers.{layer}.mlp.up_proj.weight");
        let weights =
            |seed| RandomWeights::new(ModelConfig::tiny_llama(), seed, Dtype::F32).unwrap();
        let values = |seed, layer| weights(seed).tensor(&name(layer)).unwrap().to_f32();
        assert_eq!(values(3, 0), values(3, 0));
        assert_ne!(values(3, 0), values(4, 0));
        assert_ne!(values(3, 0), values(3, 1));
    }

    #[test]
    fn matrices_are_scaled_by_the_root_of_their_inputs() {
        let weights = RandomWeights::new(ModelConfig::bench_7m(), 5, Dtype::F32).unwrap();
        let values = weights
            .tensor("model.layers.0.mlp.down_proj.weight")
            .unwrap()
            .to_f32();
        let square = values.iter().map(|x| f64::from(x * x)).sum::<f64>() / values.len() as f64;
        assert!(
            (square * 768.0 - 1.0).abs() < 0.02,
            "variance × inputs = {}",
            square * 768.0
        );
    }

    #[test]
    fn an_unknown_tensor_is_missing_by_name() {
        let weights = RandomWeights::new(ModelConfig::tiny_llama(), 0, Dtype::F32).unwrap();
        let message = weights.tensor("lm_head.weight").unwrap_err().to_string();
        assert_eq!(
            message,
            "tensor `lm_head.weight` is missing from a random Llama model"
        );
    }
}
