//! How large the batches are that the CPU is tried with, where a model's author does not say it. Each size gets a forward pass at load,
//! and many networks take seconds and gigabytes for one of 16. The server would not come up, or be killed for its memory, before anybody
//! asks for such a batch, which gains little on a CPU. So larger sizes are tried as long as the next one promises to be short and to
//! leave memory free. GPUs are tried with all sizes: there a size that is too large is only an error, and the memory is the model's.

use crate::{models::Model, telemetry::host};
use std::time::Duration;

/// The longest pass that is tried; other requests wait about as long for it.
const PASS_MAX: Duration = Duration::from_secs(1);
/// A size may take at most one part in so many of the free memory in addition to the sizes before it: other models are to be loaded, too.
const FREE_PART: u64 = 4;

/// The state of the passes up to now.
pub(super) struct Trial {
    /// Resident bytes before the first of them.
    before: u64,
}

impl Trial {
    /// Starts a trial on the CPU, for a model whose author has not said how large its batches may be.
    pub(super) fn of(model: &Model) -> Option<Trial> {
        let batch = &model.manifest.batch;
        let said = model.manifest.declared.is_none() && (batch.items_max.is_some() || batch.sizes.is_some());
        let before = host::resident().filter(|_| !said && model.fit.is_none())?;
        Some(Trial { before })
    }

    /// How larger batches can be asked for all the same. A bound that every Triton configuration has does not count as the author's
    /// choice.
    pub(super) fn otherwise(model: &Model) -> &'static str {
        match model.manifest.declared {
            Some(_) => "max_batch_size is a bound; items_max in [batch] of a model.toml has all tried",
            None => "batch.items_max says otherwise",
        }
    }

    /// Whether batches of `next` items are tried after a pass with fewer `items` that `took` so long; if not, why.
    pub(super) fn goes_on(&self, (items, took): (usize, Duration), next: usize) -> Result<(), String> {
        let Some((resident, free)) = host::resident().zip(host::free()) else { return Ok(()) };
        goes_on((items, took, resident.saturating_sub(self.before)), next, free)
    }
}

/// Likewise, where the passes took `bytes` in all and `free` bytes are left.
fn goes_on((items, took, bytes): (usize, Duration, u64), next: usize, free: u64) -> Result<(), String> {
    let grows = next as f64 / items as f64;
    let (longer, more) = (took.mul_f64(grows), (bytes as f64 * (grows - 1.0)) as u64);
    // Only a second size shows whether the first axis counts items: that is worth some time, but not all memory.
    if items > 1 && longer > PASS_MAX {
        return Err(format!("one of {items} took {:.1} s", took.as_secs_f64()));
    }
    if more > free / FREE_PART {
        return Err(format!(
            "those up to {items} took {} MB, and {} MB are free",
            bytes / 1_000_000,
            free / 1_000_000
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_said_is_told_in_the_words_of_the_models_file() {
        use crate::{
            engine::DataType,
            models::{
                testing::{model_of, source},
                triton,
            },
            tasks::testing::{signature, spec},
        };
        let otherwise = |text: Option<&str>| {
            let mut source = source("m", "1", "");
            if let Some(text) = text {
                source.manifest = triton::read(text, "m").expect("it is right").manifest;
            }
            let mut signature = signature(&[("y", &[-1, 3])]);
            signature.inputs = vec![spec("x", DataType::Fp32, &[-1, 4])];
            let model = model_of(&source, signature);
            Trial::otherwise(&model.expect("it fits"))
        };
        assert_eq!(otherwise(None), "batch.items_max says otherwise");
        assert!(
            otherwise(Some("max_batch_size: 8"))
                .starts_with("max_batch_size is a bound; items_max in [batch]")
        );
    }

    #[test]
    fn sizes_are_tried_while_passes_are_short_and_leave_memory_over() {
        let ms = Duration::from_millis;
        let (little, free) = (1_000_000, 2_000_000_000);
        assert_eq!(goes_on((4, ms(500), little), 8, free), Ok(()));
        assert_eq!(goes_on((4, ms(501), little), 8, free), Err("one of 4 took 0.5 s".into()));
        assert_eq!(
            goes_on((1, ms(60_000), little), 2, free),
            Ok(()),
            "whether it has a batch axis is to be seen"
        );
        assert_eq!(goes_on((2, ms(8), 500_000_000), 4, free), Ok(()));
        let told = "those up to 2 took 500 MB, and 1999 MB are free";
        assert_eq!(goes_on((2, ms(8), 500_000_001), 4, free - 1), Err(told.into()));
        assert!(goes_on((1, ms(8), 501_000_000), 2, free).is_err(), "not the second size either");
    }
}
