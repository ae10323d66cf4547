//! The scale at which a JPEG is decoded: the smallest that leaves enough detail in both brightness and colour.

use crate::image::{Enough, Orientation};

/// DCT scales in eighths, smallest first: those for which libjpeg-turbo has fast inverse transforms.
const EIGHTHS: [u32; 4] = [1, 2, 4, 8];

/// A scaled image must be at least this many times the wanted size, so that the loss is far below one grey level.
const OVERSAMPLING: u32 = 2;

/// The fewest pixels a scaled side may have if the image covers its last pixel only in part. Resizing treats that pixel as a whole one,
/// which shows where there are few.
const PARTLY_COVERED_MIN: u32 = 16;

/// How often each component is sampled along x and y, relative to the others; zeros for components that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::image) struct Sampling([(u32, u32); 4]);

impl Sampling {
    /// From the components of a frame header, three bytes for each.
    pub(super) fn of(components: &[u8]) -> Sampling {
        let mut sampling = Sampling::default();
        for (factors, [_, both, _]) in sampling.0.iter_mut().zip(components.as_chunks::<3>().0) {
            *factors = (u32::from(both >> 4), u32::from(both & 15));
        }
        sampling
    }

    /// The scale, in eighths, for an image of this size (as stored).
    pub(in crate::image) fn eighths(
        &self,
        size: (u32, u32),
        orientation: Orientation,
        enough: Enough<'_>,
    ) -> u32 {
        let (seen_width, seen_height) = orientation.size(size.0, size.1);
        let Some((wanted_width, wanted_height)) = enough(seen_width, seen_height) else {
            return 8;
        };
        let wanted = orientation.size(wanted_width, wanted_height);
        let most = self.0.iter().fold((1, 1), |most, of| (most.0.max(of.0), most.1.max(of.1)));
        let is_enough = |eighths: u32| {
            is_covered(size.0, eighths)
                && is_covered(size.1, eighths)
                && self.0.iter().filter(|of| of.0 > 0 && of.1 > 0).all(|&of| {
                    let own = own_eighths(of, most, eighths);
                    // At full size nothing of the component is lost, however small it is.
                    own == 8
                        || is_large(size.0, own, (of.0, most.0), wanted.0)
                            && is_large(size.1, own, (of.1, most.1), wanted.1)
                })
        };
        EIGHTHS.into_iter().find(|eighths| is_enough(*eighths)).unwrap_or(8)
    }
}

/// The scale of a subsampled component. It is twice the image's, and doubled again, as long as the component does not become larger than
/// the image along either side: the library does the same. So chroma with half the samples along both sides loses nothing by scaling, and
/// chroma with half along one side does.
fn own_eighths(of: (u32, u32), most: (u32, u32), eighths: u32) -> u32 {
    let mut own = eighths;
    while own < 8
        && (most.0 * eighths).is_multiple_of(of.0 * own * 2)
        && (most.1 * eighths).is_multiple_of(of.1 * own * 2)
    {
        own *= 2;
    }
    own
}

/// Whether a component keeps enough samples along a side of the image.
fn is_large(side: u32, eighths: u32, (of, most): (u32, u32), wanted: u32) -> bool {
    let samples = (u64::from(side) * u64::from(of * eighths)).div_ceil(u64::from(8 * most));
    samples >= u64::from(wanted) * u64::from(OVERSAMPLING)
}

/// Whether the image covers the last pixel of a scaled side, or the side is long enough for that not to matter.
fn is_covered(side: u32, eighths: u32) -> bool {
    let scaled = scaled(side, eighths);
    scaled >= PARTLY_COVERED_MIN || u64::from(side) * u64::from(eighths) == 8 * u64::from(scaled)
}

/// A side after DCT scaling: the library rounds up.
pub(in crate::image) fn scaled(side: u32, eighths: u32) -> u32 {
    (u64::from(side) * u64::from(eighths)).div_ceil(8) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scale for an image of 4096 x 4096 pixels whose brightness is sampled 4 x 4 and whose colours are sampled as `chroma`.
    fn eighths(chroma: (u8, u8), wanted: (u32, u32)) -> u32 {
        let chroma = chroma.0 << 4 | chroma.1;
        let sampling = Sampling::of(&[1, 0x44, 0, 2, chroma, 1, 3, chroma, 1]);
        sampling.eighths((4096, 4096), Orientation::UPRIGHT, &|_, _| Some(wanted))
    }

    #[test]
    fn of_colours_as_much_is_left_as_of_brightness() {
        let both = |chroma| [256, 128, 64].map(|wanted| eighths(chroma, (wanted, wanted)));
        // 4:4:4 and 4:2:0: 512 samples of each component are twice 256.
        assert_eq!(both((4, 4)), [1, 1, 1]);
        assert_eq!(both((2, 2)), [1, 1, 1]);
        assert_eq!(both((1, 1)), [1, 1, 1]);
        // 4:2:2 and 4:4:0: half as many samples of colour.
        assert_eq!(both((2, 4)), [2, 1, 1]);
        assert_eq!(both((4, 2)), [2, 1, 1]);
        // 4:1:1: a quarter as many; and 4:1:0, for which the library makes half as many.
        assert_eq!(both((1, 4)), [4, 2, 1]);
        assert_eq!(both((1, 2)), [2, 1, 1]);
        // The side that is fully sampled may be wanted larger.
        assert_eq!(eighths((2, 4), (128, 256)), 1);
        assert_eq!(eighths((2, 4), (256, 128)), 2);
        // At half the size, 4:2:0 keeps all its colour samples.
        assert_eq!(eighths((2, 2), (1024, 1024)), 4);
        assert_eq!(eighths((2, 4), (1024, 1024)), 8);
    }

    #[test]
    fn sides_are_as_stored_and_asked_for_as_seen() {
        let sampling = Sampling::of(&[1, 0x21, 0, 2, 0x11, 1, 3, 0x11, 1]);
        let eighths = |wanted| {
            sampling.eighths((4096, 2048), Orientation::new(6), &|width, height| {
                assert_eq!((width, height), (2048, 4096));
                Some(wanted)
            })
        };
        assert_eq!([eighths((128, 128)), eighths((128, 256)), eighths((256, 128))], [1, 2, 2]);
    }
}
