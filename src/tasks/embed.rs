//! Embed: a model's output as one vector.

use super::{Outputs, choose, is_one, wrong_shape};
use crate::engine::{Dim, Signature, show};

/// How an output with features in several places becomes one vector: tokens `[N, T, F]`, and maps `[N, F, H, W]` or `[N, H, W, F]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// All numbers are the vector.
    None,
    /// The features of the first token, which many transformers use for the whole image.
    First,
    /// The mean over all places.
    Mean,
}

impl Pool {
    /// All kinds, with their names in manifests.
    pub const ALL: [(&str, Pool); 3] = [("none", Pool::None), ("first", Pool::First), ("mean", Pool::Mean)];
}

/// Settings of an embedding model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embed {
    /// The output to read. If not set: the only output.
    pub output: Option<String>,
    /// If not set: all numbers.
    pub pool: Option<Pool>,
    /// Whether to divide by the Euclidean norm, so that a dot product is a cosine. A vector of zeros stays as it is.
    pub normalize: bool,
}

impl Embed {
    pub(super) fn resolve(mut self, signature: &Signature) -> Result<Embed, String> {
        let output = choose(signature, self.output.as_deref(), "embed.output")?;
        self.output = Some(output.name.clone());
        if !output.shape.is_empty() {
            self.pooled(&output.name, &output.shape)?;
        }
        Ok(self)
    }

    /// A hint about an output with several places, all of whose numbers become the vector because no setting says otherwise.
    pub(super) fn unread(&self, signature: &Signature) -> Option<String> {
        let output = signature.outputs.iter().find(|output| Some(&output.name) == self.output.as_ref())?;
        let extents = output.shape.iter().skip(1).filter(|extent| **extent != Dim::Fixed(1)).count();
        (self.pool.is_none() && extents > 1).then(|| {
            format!(
                "all numbers of output {:?} of shape {} are the vector: embed.pool = \"mean\" makes one of features of it, \"first\" \
                 takes those of the first token, and \"none\" leaves it so",
                output.name,
                show(&output.shape)
            )
        })
    }

    /// How the numbers are pooled, if they are.
    fn pooled(&self, name: &str, shape: &[Dim]) -> Result<Option<(Pool, Features)>, String> {
        let Some(pool @ (Pool::First | Pool::Mean)) = self.pool else { return Ok(None) };
        let features = match *shape {
            [one, _, _] if is_one(one) => Features::Last,
            // If the places form a square, the extents tell where the features are.
            [one, a, b, c] if is_one(one) && pool == Pool::Mean => match a == b && b != c {
                true => Features::Last,
                false => Features::First,
            },
            _ => {
                let map = ", or a map [1, features, height, width]";
                let expected = format!(
                    "tokens [1, tokens, features]{} for embed.pool",
                    if pool == Pool::Mean { map } else { "" }
                );
                return Err(wrong_shape(name, shape, &expected));
            }
        };
        Ok(Some((pool, features)))
    }

    /// The output's elements in row-major order, or the result of pooling them.
    pub(super) fn answer(&self, outputs: &Outputs<'_>) -> Result<Vec<f32>, String> {
        let output = outputs.get(self.output.as_deref())?;
        let mut vector = output.numbers()?;
        if let Some(index) = vector.iter().position(|n| !n.is_finite()) {
            return Err(format!(
                "output {:?} is {} at element {index}, expected a finite number",
                output.name, vector[index]
            ));
        }
        if let Some((pool, features)) = self.pooled(output.name, &output.shape())? {
            let shape = &output.tensor.shape;
            let places = match features {
                Features::First => shape[2..].iter().product(),
                Features::Last => shape[1..shape.len() - 1].iter().product(),
            };
            vector = pooled(&vector, pool, features, places);
        }
        if self.normalize {
            normalize(&mut vector);
        }
        Ok(vector)
    }
}

/// Where an output with several places has its features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Features {
    /// A plane for each feature.
    First,
    /// Interleaved at each place.
    Last,
}

/// One number for each feature, from those of this many places; empty without places.
fn pooled(numbers: &[f32], pool: Pool, features: Features, places: usize) -> Vec<f32> {
    let count = numbers.len().checked_div(places).unwrap_or(0);
    let (of_feature, of_place) = match features {
        Features::First => (places, 1),
        Features::Last => (1, count),
    };
    let places = if pool == Pool::First { 1 } else { places };
    let feature = |feature: usize| {
        let sum: f64 =
            (0..places).map(|place| f64::from(numbers[feature * of_feature + place * of_place])).sum();
        (sum / places as f64) as f32
    };
    (0..count).map(feature).collect()
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
        let embed = Embed { normalize, ..Embed::default() };
        let tensors = [floats(&[1, numbers.len(), 1, 1], numbers)];
        embed.resolve(&signature).unwrap().answer(&Outputs::new(&tensors, &signature).unwrap())
    }

    #[test]
    fn tokens_and_maps_are_pooled_where_the_manifest_says_how() {
        let check = |pool, file: &[i64], shape: &[usize], numbers: &[f32]| {
            let signature = signature(&[("states", file)]);
            let embed = Embed { pool, ..Embed::default() }.resolve(&signature)?;
            let told = embed.unread(&signature);
            let tensors = [floats(shape, numbers)];
            Ok::<_, String>((embed.answer(&Outputs::new(&tensors, &signature)?)?, told.is_some()))
        };
        let (first, mean) = (Some(Pool::First), Some(Pool::Mean));
        // Three tokens of two features.
        let tokens = [1.0, 10.0, 2.0, 20.0, 6.0, 60.0];
        let of_tokens = |pool| check(pool, &[-1, -1, 2], &[1, 3, 2], &tokens).unwrap();
        assert_eq!(of_tokens(first), (vec![1.0, 10.0], false));
        assert_eq!(of_tokens(mean), (vec![3.0, 30.0], false));
        assert_eq!(of_tokens(Some(Pool::None)), (tokens.to_vec(), false));
        assert_eq!(of_tokens(None), (tokens.to_vec(), true));
        // Maps of three features over 2 x 2 places: features first, then features last.
        let planes = [1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0, 0.0, 0.0, 0.0, 4.0];
        let map = (vec![2.5, 25.0, 1.0], false);
        assert_eq!(check(mean, &[-1, 3, 2, 2], &[1, 3, 2, 2], &planes).unwrap(), map);
        let beside: Vec<f32> = (0..12).map(|at| planes[at % 3 * 4 + at / 3]).collect();
        assert_eq!(check(mean, &[-1, 2, 2, 3], &[1, 2, 2, 3], &beside).unwrap(), map);
        // A single vector has no places.
        assert!(!check(None, &[-1, 2, 1, 1], &[1, 2, 1, 1], &[1.0, 2.0]).unwrap().1);
        let error = check(first, &[-1, 2], &[1, 2], &[1.0, 2.0]).unwrap_err();
        assert_eq!(
            error,
            "output \"states\" has shape [?, 2], expected tokens [1, tokens, features] for embed.pool"
        );
        assert!(check(first, &[-1, 3, 2, 2], &[1, 3, 2, 2], &planes).is_err());
        assert!(check(mean, &[], &[2], &[1.0, 2.0]).unwrap_err().contains("has shape [2], expected tokens"));
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
