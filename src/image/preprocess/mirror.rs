//! Fills a picture up with its mirror image.

/// Fills `to` pixels across and down with a picture of `from` pixels, in the top left corner, and its mirror image. The pixels at the edge
/// are not repeated, as in NumPy's and PyTorch's "reflect".
pub(super) fn mirror<T: Copy>(
    samples: &[T],
    from: [usize; 2],
    channels: usize,
    to: [usize; 2],
    filled: &mut Vec<T>,
) {
    // 0, 1, 2, 1, 0, 1, ... of three.
    let mirrored = |at: usize, length: usize| {
        let period = (2 * (length - 1)).max(1);
        (at % period).min(period - at % period)
    };
    filled.clear();
    filled.reserve(to[0] * to[1] * channels);
    for row in 0..to[1] {
        let begin = mirrored(row, from[1]) * from[0] * channels;
        let row = &samples[begin..begin + from[0] * channels];
        filled.extend_from_slice(row);
        for column in from[0]..to[0] {
            let begin = mirrored(column, from[0]) * channels;
            filled.extend_from_slice(&row[begin..begin + channels]);
        }
    }
}
