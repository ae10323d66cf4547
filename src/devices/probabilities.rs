//! Whether what a classifier's network gives are probabilities already, although its file does not show it: a mean of several softmaxes,
//! one that is cut off at small numbers, or one that is written in another way.

use super::{
    bounded::{RUN_MAX, bounded},
    warm::{guessed, warm_shapes, zeros},
};
use crate::{
    engine::{Engine, EngineError, Flight, Tensor, TensorSpec},
    models::{Model, chance},
};

/// What numbers for random inputs seem to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Probabilities of classes that exclude each other: each lies in 0 to 1, and they sum to 1 for each input.
    Probabilities,
    /// Each lies in 0 to 1, which may be chance.
    Perhaps,
}

/// Random inputs to run. Logits mostly show with the first.
const RUNS: u64 = 4;
/// How far a sum of rounded probabilities may be from 1.
const TOLERANCE: f64 = 1e-3;

/// Runs a classifier whose activation is a default with random inputs. `None` if its numbers are no probabilities, or if nothing can be
/// told.
///
/// # Errors
/// Those of the device.
pub(super) fn seen<Busy>(
    engine: &mut dyn Engine,
    model: &Model,
    ending: &(dyn Fn() -> bool + Sync),
    busy: impl Fn() -> Busy,
) -> Result<Option<Seen>, EngineError> {
    let Some(classify) = model.by_default() else { return Ok(None) };
    let named = |output: &TensorSpec| Some(&output.name) == classify.output.as_ref();
    let Some(output) = model.signature.outputs.iter().position(named) else { return Ok(None) };
    if guessed(model) {
        return Ok(None);
    }
    let size = model.rules.sizes.first().copied().unwrap_or(1);
    let mut all = Some(Seen::Probabilities);
    for run in 0..RUNS {
        let mut inputs = zeros(warm_shapes(model, size), model);
        if let Some(first) = inputs.first_mut() {
            first.data = chance(first.datatype, first.data.len(), run).into();
        }
        let _busy = busy();
        let pass = |engine: &mut dyn Engine| engine.start(inputs, None).and_then(Flight::land);
        let outputs = match bounded(engine, RUN_MAX, ending, pass) {
            Ok(outputs) => outputs,
            Err(EngineError::Input(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        all = all.and_then(|all| Some(all.min_of(kind(outputs.get(output)?, size)?)));
        if all.is_none() {
            break;
        }
    }
    Ok(all)
}

impl Seen {
    /// What both may be.
    fn min_of(self, other: Seen) -> Seen {
        if self == other { self } else { Seen::Perhaps }
    }
}

/// What the numbers of so many items seem to be.
fn kind(output: &Tensor, items: usize) -> Option<Seen> {
    let numbers = output.to_f32()?;
    let classes = numbers.len() / items.max(1);
    let is_part = |number: &f32| (0.0..=1.0 + TOLERANCE as f32).contains(number);
    // Zeros are what a network gives that is not moved by its input.
    if classes == 0 || !numbers.iter().all(is_part) || numbers.iter().all(|number| *number == 0.0) {
        return None;
    }
    let sums_to_1 = |row: &[f32]| {
        let sum: f64 = row.iter().copied().map(f64::from).sum();
        (sum - 1.0).abs() <= TOLERANCE
    };
    // A single number is none of several.
    let sums = classes > 1 && numbers.chunks_exact(classes).all(sums_to_1);
    Some(if sums { Seen::Probabilities } else { Seen::Perhaps })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{DataType, Setting, Signature},
        models::testing::{model_of, source},
        tasks::testing::{floats, signature, spec},
    };

    /// Gives what a function makes of the first numbers of its input.
    struct Network(Signature, fn(&[f32]) -> Vec<f32>, u64);

    impl Engine for Network {
        fn signature(&self) -> &Signature {
            &self.0
        }

        fn start(&mut self, inputs: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
            self.2 += 1;
            let given: Vec<f32> =
                inputs[0].data.iter().take(3).map(|pixel| f32::from(*pixel) / 128.0).collect();
            let made = (self.1)(&given);
            Ok(Flight::Landed(vec![floats(&[1, made.len()], &made)]))
        }
    }

    fn asked(manifest: &str, network: fn(&[f32]) -> Vec<f32>) -> (Option<Seen>, u64) {
        let mut signature = signature(&[("y", &[-1, -1])]);
        signature.inputs = vec![spec("x", DataType::Fp32, &[-1, 3, 8, 8])];
        let source = source("m", "1", &format!("task = \"classify\"\n{manifest}"));
        let model = model_of(&source, signature.clone()).unwrap();
        let mut engine = Network(signature, network, 0);
        (seen(&mut engine, &model, &|| false, || ()).unwrap(), engine.2)
    }

    fn shares(given: &[f32]) -> Vec<f32> {
        let sum: f32 = given.iter().sum();
        given.iter().map(|number| number / sum).collect()
    }

    #[test]
    fn numbers_that_sum_to_1_for_any_input_are_probabilities() {
        assert_eq!(asked("", shares), (Some(Seen::Probabilities), RUNS));
        assert_eq!(
            asked("", |given| shares(given).iter().map(|part| part.max(1e-4)).collect()).0,
            Some(Seen::Probabilities)
        );
        for said in ["softmax", "sigmoid", "none"] {
            assert_eq!(asked(&format!("[classify]\nactivation = {said:?}"), shares), (None, 0));
        }
    }

    #[test]
    fn numbers_in_0_to_1_that_do_not_sum_to_1_each_time_may_be() {
        assert_eq!(asked("", <[f32]>::to_vec).0, Some(Seen::Perhaps));
        assert_eq!(asked("", |given| vec![given[0]]).0, Some(Seen::Perhaps));
        assert_eq!(asked("", |_| vec![1.0]).0, Some(Seen::Perhaps), "softmax of one number says nothing");
        // By chance the first sums to 1.
        let once = |given: &[f32]| if given[0] > 0.5 { shares(given) } else { given.to_vec() };
        assert_eq!(asked("", once).0, Some(Seen::Perhaps));
    }

    #[test]
    fn logits_show_with_the_first_run_and_zeros_tell_nothing() {
        assert_eq!(asked("", |given| given.iter().map(|number| number - 2.0).collect()), (None, 1));
        assert_eq!(asked("", |given| given.iter().map(|number| number + 2.0).collect()), (None, 1));
        assert_eq!(asked("", |_| vec![0.0; 3]), (None, 1));
        assert_eq!(asked("", |_| vec![f32::NAN; 3]), (None, 1));
    }
}
