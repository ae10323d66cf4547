//! Our own kernels: safe launchers for the objects that `kernels/build.rs` compiles for the CPU, one set per instruction set,
//! chosen at run time; and the parameters of launching the same kernels on a device.
//!
//! - [`psf`], [`camera`]: the checked models of spots and cameras.
//! - [`mod@fit`]: fits one spot per ROI.
//! - [`spots`]: finds spots in frames and cuts out ROIs.
//! - [`preprocess`], [`postprocess`]: images to a model's input, and a model's outputs to answers; on a device only.
//!
//! A launcher runs on the calling thread and asserts every length against the shapes that its kernel states. The modules for a
//! device (`device` in [`mod@fit`] and [`spots`], and the last two) only compute names, sizes and arguments of launches of
//! `kernels/generated`. Tests run these kernels on the CPU, thread by thread (`tests/machine`), if the C library has what that
//! needs (`kernels_emulated`).

pub mod camera;
#[cfg(all(test, kernels_emulated))]
mod emulated;
#[cfg(test)]
mod erf;
pub mod fit;
pub mod postprocess;
pub mod preprocess;
pub mod psf;
pub mod spots;

use std::fmt;

pub use camera::{Camera, CameraValue, SensorMap};
pub use fit::{Adu, Columns, FitCall, FitStatus, Rois, SIDE, SpotFit, fit, fit_all, fit_rows, on_sensor};
pub use psf::{Astigmatism, FitModel, ITERATIONS_MAX, Psf, SIGMA_PX, are_square, sigma_px};
pub use spots::{Border, FinderOptions, Method, RADIUS, RoiBuffer, Spot, SpotFinder, Threshold};

/// An invalid property of a model, a camera or ROIs, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// The field at fault, as callers spell it.
    pub field: &'static str,
    /// The value and its limit.
    pub why: String,
}

impl Invalid {
    pub(crate) fn new(field: &'static str, why: String) -> Invalid {
        Invalid { field, why }
    }
}

/// The instruction set that a kernel object was compiled for. Wider ones are faster; results agree up to rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// What every machine of this architecture has: 4 lanes (SSE2, NEON).
    Baseline,
    /// x86-64 with AVX2 and fused multiply-add: 8 lanes.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL): 16 lanes.
    Avx512,
}

impl InstructionSet {
    /// All that this machine can run, the narrowest first.
    pub fn supported() -> Vec<InstructionSet> {
        let all = [InstructionSet::Baseline, InstructionSet::Avx2, InstructionSet::Avx512];
        all.into_iter().filter(|set| set.is_supported()).collect()
    }

    /// The widest that this machine can run.
    pub fn detect() -> InstructionSet {
        let all = [InstructionSet::Avx512, InstructionSet::Avx2];
        all.into_iter().find(|set| set.is_supported()).unwrap_or(InstructionSet::Baseline)
    }

    /// Whether this machine can run it.
    pub fn is_supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            match self {
                InstructionSet::Baseline => true,
                InstructionSet::Avx2 => avx2(),
                InstructionSet::Avx512 => {
                    avx2()
                        && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == InstructionSet::Baseline
        }
    }

    /// Floats that are processed at a time.
    pub fn lanes(self) -> usize {
        match self {
            InstructionSet::Baseline => 4,
            InstructionSet::Avx2 => 8,
            InstructionSet::Avx512 => 16,
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            InstructionSet::Baseline => "baseline",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
        })
    }
}

/// Declares one host entry of a kernel, compiled once per instruction set, and a function that chooses among them.
///
/// `entry!(choose, fn(arguments) -> (), baseline_name, avx2_name, avx512_name)`: the chosen one must only be called
/// for a set that [`InstructionSet::is_supported`].
macro_rules! entry {
    ($choose:ident, ($($argument:ident: $kind:ty),* $(,)?), $baseline:ident, $avx2:ident, $avx512:ident) => {
        #[allow(unsafe_code, reason = "the kernels are C++")]
        mod $choose {
            #[allow(unused_imports, reason = "some entries take primitive types alone")]
            use super::*;
            pub(super) type Entry = unsafe extern "C" fn($($argument: $kind),*);
            // SAFETY: the signatures are those of the entries in `kernels/`.
            unsafe extern "C" {
                fn $baseline($($argument: $kind),*);
                #[cfg(target_arch = "x86_64")]
                fn $avx2($($argument: $kind),*);
                #[cfg(target_arch = "x86_64")]
                fn $avx512($($argument: $kind),*);
            }
            /// The entry that was compiled for `set`; the baseline's if the machine cannot run that.
            pub(super) fn $choose(set: $crate::engine::kernels::InstructionSet) -> Entry {
                #[cfg(target_arch = "x86_64")]
                match set {
                    $crate::engine::kernels::InstructionSet::Avx512 if set.is_supported() => return $avx512,
                    $crate::engine::kernels::InstructionSet::Avx2 if set.is_supported() => return $avx2,
                    _ => (),
                }
                let _ = set;
                $baseline
            }
        }
        use $choose::$choose;
    };
}
pub(crate) use entry;

#[cfg(test)]
mod tests {
    use super::{erf::erf, *};

    entry!(
        math_check,
        (function: i32, x: *const f32, y: *mut f32, count: usize),
        ocelli_math_check_baseline,
        ocelli_math_check_avx2,
        ocelli_math_check_avx512
    );

    /// The results of `set`'s object.
    fn apply(set: InstructionSet, function: i32, x: &[f32]) -> Vec<f32> {
        let mut y = vec![f32::NAN; x.len()];
        // SAFETY: the entry reads and writes `count` floats, which both slices hold.
        #[allow(unsafe_code, reason = "a call into C++")]
        unsafe {
            math_check(set)(function, x.as_ptr(), y.as_mut_ptr(), x.len());
        }
        y
    }

    /// Fails if a result differs from `exact` by more than both `absolute` and `relative` times the value.
    fn check(function: i32, x: &[f32], exact: fn(f64) -> f64, absolute: f64, relative: f64) {
        for set in InstructionSet::supported() {
            let mut worst = (0.0, 0.0, 0.0);
            for (&x, y) in x.iter().zip(apply(set, function, x)) {
                let exact = exact(f64::from(x));
                let off = (f64::from(y) - exact).abs() / (absolute + relative * exact.abs());
                assert!(off.is_finite(), "{set}: f({x}) is {y}");
                worst = if off > worst.0 { (off, f64::from(x), f64::from(y)) } else { worst };
            }
            println!(
                "{set}: function {function}: {:.3} of the tolerance at {} -> {}",
                worst.0, worst.1, worst.2
            );
            assert!(worst.0 <= 1.0, "{set}: function {function} at {}: {}", worst.1, worst.2);
        }
    }

    /// `count` values from `low` to `high`, evenly.
    fn even(low: f32, high: f32, count: usize) -> Vec<f32> {
        (0..count).map(|i| low + (high - low) * i as f32 / (count - 1) as f32).collect()
    }

    /// `count` values from 2^`low` to 2^`high`, evenly in the exponent.
    fn powers(low: f32, high: f32, count: usize) -> Vec<f32> {
        even(low, high, count).into_iter().map(f32::exp2).collect()
    }

    #[test]
    fn exp_is_right_to_a_few_units_in_the_last_place() {
        check(0, &even(-10.0, 10.0, 100_001), f64::exp, 0.0, 6e-7);
        check(0, &even(-80.0, 80.0, 100_001), f64::exp, 0.0, 4e-6);
    }

    #[test]
    fn ln_is_right_near_one_and_far_from_it() {
        check(1, &powers(-120.0, 120.0, 100_001), f64::ln, 1e-7, 2e-7);
        check(1, &even(0.5, 2.0, 100_001), f64::ln, 2e-8, 2e-7);
    }

    #[test]
    fn erf_is_right_to_seven_ten_millionths() {
        // Exact values from a C library, on either side of the points where the algorithm changes.
        for (x, exact) in [
            (0.5, 0.520_499_877_813_046_5),
            (1.999, 0.995_301_556_651_370_5),
            (2.0, 0.995_322_265_018_952_7),
            (-4.5, -0.999_999_999_803_383_9),
        ] {
            assert!((erf(x) - exact).abs() < 1e-15, "{x}: {}", erf(x));
        }
        check(2, &even(-6.0, 6.0, 100_001), erf, 7e-7, 0.0);
    }

    #[test]
    fn reciprocal_and_root_are_right_to_a_few_units_in_the_last_place() {
        check(3, &powers(-120.0, 120.0, 100_001), f64::recip, 0.0, 2.5e-7);
        check(4, &powers(-120.0, 120.0, 100_001), f64::sqrt, 0.0, 3e-7);
    }

    #[test]
    fn the_widest_set_that_is_supported_is_detected() {
        assert_eq!(InstructionSet::supported().last(), Some(&InstructionSet::detect()));
        assert_eq!(InstructionSet::supported().first(), Some(&InstructionSet::Baseline));
    }
}
