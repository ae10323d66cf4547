//! The error function in double precision, for tests; the checks on a GPU include this file as well.

/// erf to a few units in the last place of 1. By its series near zero. Further out the series loses as many digits as exp(x^2) has, so
/// it uses the continued fraction of the complement to 1.
pub(crate) fn erf(x: f64) -> f64 {
    let size = x.abs();
    let per_root_pi = std::f64::consts::PI.sqrt().recip();
    if size >= 2.0 {
        let fraction = (1..=100).rev().fold(size, |rest, n| size + f64::from(n) / 2.0 / rest);
        return (1.0 - (-size * size).exp() * per_root_pi / fraction).copysign(x);
    }
    let (mut sum, mut term) = (x, x);
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    2.0 * per_root_pi * sum
}
