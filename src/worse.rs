//! Differences from what is expected, in tests. Included by the test crates, too.

/// The larger of two differences. What is no number is larger than all: `f32::max` would drop it.
pub(crate) fn worse<T: PartialOrd>(a: T, b: T) -> T {
    let is_number = a.partial_cmp(&a).is_some();
    if !is_number || b <= a { a } else { b }
}
