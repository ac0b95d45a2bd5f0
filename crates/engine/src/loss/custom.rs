//! Losses that the engine does not know: the caller computes them.

use tinkrs_types::Datum;

use super::{LossOutput, Metrics};
use crate::Error;

pub use tinkrs_backend::{CustomLoss, CustomOutput, Objective};

/// Evaluates a custom loss, and holds it to what every loss has to keep.
pub(crate) fn evaluate(
    loss: &dyn CustomLoss,
    index: usize,
    logprobs: &[f32],
    datum: &Datum,
) -> Result<LossOutput, Error> {
    let refuse = |reason: String| Error::Input {
        datum: index,
        input: "loss_fn".to_owned(),
        reason,
    };
    let output = loss
        .evaluate(logprobs, datum)
        .map_err(|reason| refuse(format!("could not be computed: {reason}")))?;
    if output.gradient.len() != logprobs.len() {
        let found = output.gradient.len();
        let reason = format!("has {found} derivatives for {} targets", logprobs.len());
        return Err(refuse(reason));
    }
    if !output.loss.is_finite() {
        return Err(refuse(format!("gives a loss of {}", output.loss)));
    }
    let gradient: Vec<f32> = output.gradient.iter().map(|slope| *slope as f32).collect();
    if let Some(position) = gradient.iter().position(|slope| !slope.is_finite()) {
        return Err(Error::NonFiniteDatum {
            datum: index,
            position,
            what: "derivative of the loss".to_owned(),
            value: gradient[position],
        });
    }
    let mut metrics = Metrics::default();
    metrics.push("loss:sum", output.loss);
    for (name, value) in output.metrics {
        metrics.push(name, value);
    }
    Ok(LossOutput {
        loss: output.loss,
        gradient,
        metrics,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_types::{InvalidInput, ModelInput};

    #[derive(Debug)]
    struct Fixed(Result<CustomOutput, String>);

    impl CustomLoss for Fixed {
        fn check(&self, _: &Datum) -> Result<(), InvalidInput> {
            Ok(())
        }

        fn evaluate(&self, _: &[f32], _: &Datum) -> Result<CustomOutput, String> {
            self.0.clone()
        }
    }

    fn evaluated(result: Result<CustomOutput, String>) -> Result<LossOutput, Error> {
        let datum = Datum::supervised(ModelInput::from_tokens([1, 2]), [2, 3], [1.0, 1.0]).unwrap();
        evaluate(&Fixed(result), 3, &[-1.0, -2.0], &datum)
    }

    fn output(loss: f64, gradient: &[f64]) -> Result<CustomOutput, String> {
        Ok(CustomOutput {
            loss,
            gradient: gradient.to_vec(),
            metrics: vec![("custom/a:sum".to_owned(), 7.0)],
        })
    }

    #[test]
    fn a_custom_loss_reports_its_sum_and_its_own_metrics() {
        let found = evaluated(output(2.5, &[0.5, -0.25])).unwrap();
        assert_eq!(found.gradient, [0.5, -0.25]);
        assert_eq!(found.metrics.get("loss:sum"), Some(2.5));
        assert_eq!(found.metrics.get("custom/a:sum"), Some(7.0));
    }

    #[test]
    fn what_no_loss_may_do_names_the_datum() {
        let cases = [
            (Err("it is raining".to_owned()), "it is raining"),
            (output(1.0, &[0.5]), "1 derivatives for 2 targets"),
            (output(f64::NAN, &[0.5, 0.5]), "loss of NaN"),
            (output(1.0, &[0.5, f64::INFINITY]), "position 1"),
            (output(1.0, &[0.5, 1e300]), "position 1"),
        ];
        for (result, expected) in cases {
            let error = evaluated(result).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(expected) && text.contains("datum 3"),
                "{text}"
            );
            assert!(error.is_bad_request(), "{text}");
        }
    }
}
