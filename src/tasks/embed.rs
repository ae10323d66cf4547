//! Embed: a model's output as one vector.

use super::{Outputs, choose};
use crate::engine::Signature;

/// Settings of an embedding model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embed {
    /// The output to read; the only one when open.
    pub output: Option<String>,
    /// Divide by the Euclidean norm, so that a dot product is a cosine. A vector of zeros stays one.
    pub normalize: bool,
}

impl Embed {
    pub(super) fn resolve(mut self, signature: &Signature) -> Result<Embed, String> {
        let output = choose(signature, self.output.as_deref(), "embed.output")?;
        self.output = Some(output.name.clone());
        Ok(self)
    }

    /// The output's elements in row-major order.
    pub(super) fn answer(&self, outputs: &Outputs<'_>) -> Result<Vec<f32>, String> {
        let output = outputs.get(self.output.as_deref())?;
        let mut vector = output.numbers()?;
        if let Some(index) = vector.iter().position(|n| !n.is_finite()) {
            return Err(format!(
                "output {:?} is {} at element {index}, expected a finite number",
                output.name, vector[index]
            ));
        }
        if self.normalize {
            normalize(&mut vector);
        }
        Ok(vector)
    }
}

/// Divides by the Euclidean norm, summed in `f64` so that neither large nor long vectors overflow.
fn normalize(vector: &mut [f32]) {
    let norm = vector.iter().map(|n| f64::from(*n).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        for n in vector {
            *n = (f64::from(*n) / norm) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};
    use proptest::prelude::*;

    fn check(normalize: bool, numbers: &[f32]) -> Result<Vec<f32>, String> {
        let signature = signature(&[("features", &[-1, -1, 1, 1])]);
        let embed = Embed { output: None, normalize };
        let tensors = [floats(&[1, numbers.len(), 1, 1], numbers)];
        embed.resolve(&signature).unwrap().answer(&Outputs::new(&tensors, &signature).unwrap())
    }

    #[test]
    fn a_vector_is_flattened_and_normalised_only_when_asked() {
        assert_eq!(check(false, &[3.0, 4.0]).unwrap(), [3.0, 4.0]);
        assert_eq!(check(true, &[3.0, 4.0]).unwrap(), [0.6, 0.8]);
    }

    #[test]
    fn a_vector_of_zeros_stays_zero() {
        assert_eq!(check(true, &[0.0, 0.0]).unwrap(), [0.0, 0.0]);
    }

    #[test]
    fn numbers_that_are_not_finite_are_an_error() {
        assert_eq!(
            check(false, &[1.0, f32::NAN]).unwrap_err(),
            "output \"features\" is not a number (NaN) at element 1: the model cannot process this input"
        );
        assert!(check(true, &[f32::INFINITY]).unwrap_err().contains("is inf"));
    }

    proptest! {
        #[test]
        fn a_normalised_vector_has_length_one(numbers in prop::collection::vec(-1e30_f32..1e30, 1..64)) {
            prop_assume!(numbers.iter().any(|n| n.abs() > 1e-30));
            let vector = check(true, &numbers).unwrap();
            let length = vector.iter().map(|n| f64::from(*n).powi(2)).sum::<f64>().sqrt();
            prop_assert!((length - 1.0).abs() < 1e-5, "length {length}");
        }
    }
}
