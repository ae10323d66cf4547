//! From densities to a PNG.

use super::density::Density;
use crate::tasks::{
    localize::{
        colormap::{Colormap, byte, hue},
        options::{ColorBy, PictureOptions},
    },
    picture::encode,
};
use png::{BitDepth, ColorType, PixelDimensions, Unit};

/// Percentiles are computed from a sample of about this many pixels.
const SAMPLE: usize = 1 << 21;

/// A PNG of the densities. `pixel_nm` is the size of its pixels, if known; `about` goes into its description.
pub(super) fn png(
    density: &Density,
    options: &PictureOptions,
    pixel_nm: Option<[f64; 2]>,
    about: String,
) -> Result<Vec<u8>, String> {
    let white = percentile(density.sums.iter().copied().filter(|sum| *sum > 0.0), options.white_percentile);
    // If there is nothing to show, everything is black.
    let white = white.unwrap_or(1.0);
    let (color, data, about) = match options.color_by {
        ColorBy::Density => {
            let gray = options.colormap == Colormap::Gray;
            let color = if gray { ColorType::Grayscale } else { ColorType::Indexed };
            (color, density.sums.iter().map(|sum| byte(sum / white)).collect::<Vec<u8>>(), about)
        }
        ColorBy::Z(range) => {
            let [low, high] = range.unwrap_or_else(|| z_range(density, white));
            let pixels = density.sums.iter().zip(density.z_sums.iter().flatten());
            let data = pixels.flat_map(|(sum, z_sum)| {
                let height = if *sum > 0.0 { (z_sum / sum - low) / (high - low) } else { 0.0 };
                hue(height, sum / white)
            });
            let about = format!("{about}; hue from red at z = {low} um to azure at {high} um");
            (ColorType::Rgb, data.collect(), about)
        }
    };

    let size = [density.width as u32, density.height as u32];
    let png = encode(size, color, BitDepth::Eight, &data, |encoder| {
        if color == ColorType::Indexed {
            encoder.set_palette(options.colormap.palette());
        }
        encoder.set_pixel_dims(pixel_nm.map(|nm| {
            let [xppu, yppu] = nm.map(|nm| (1e9 / nm).round() as u32);
            PixelDimensions { xppu, yppu, unit: Unit::Meter }
        }));
        let about = format!("{about}; full brightness is {white} localizations per pixel");
        encoder.add_text_chunk("Description".to_owned(), about)
    });
    png.map_err(|error| format!("cannot write a picture {error}"))
}

/// A percentile of the numbers, if there are any.
fn percentile(values: impl Iterator<Item = f32> + Clone, percentile: f64) -> Option<f32> {
    let step = values.clone().count() / SAMPLE + 1;
    let mut sample: Vec<f32> = values.step_by(step).collect();
    let rank = (percentile / 100.0 * sample.len() as f64).ceil() as usize;
    let rank = rank.clamp(1, sample.len().max(1)) - 1;
    if rank >= sample.len() {
        return None;
    }
    Some(*sample.select_nth_unstable_by(rank, f32::total_cmp).1)
}

/// The range of the mean z in the middle 98 % of the brighter pixels, in um.
fn z_range(density: &Density, white: f32) -> [f32; 2] {
    let pixels = density.sums.iter().zip(density.z_sums.iter().flatten());
    let means = pixels.filter(|(sum, _)| **sum > 0.1 * white).map(|(sum, z_sum)| z_sum / sum);
    match [1.0, 99.0].map(|percent| percentile(means.clone(), percent)) {
        [Some(low), Some(high)] if low < high => [low, high],
        // Only one height: it gets the middle of the colors.
        [Some(only), _] => [only - 0.5, only + 0.5],
        _ => [-0.5, 0.5],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        for (percent, expected) in [(100.0, 5.0), (80.0, 4.0), (60.1, 4.0), (1.0, 1.0)] {
            assert_eq!(percentile(values.iter().copied(), percent), Some(expected));
        }
        assert_eq!(percentile([].into_iter(), 50.0), None);
    }

    #[test]
    fn z_is_shown_over_the_range_that_it_has() {
        let mut density = Density::new([101, 1], true);
        for x in 0..100 {
            density.count([f64::from(x), 0.0], x as f32 / 100.0);
        }
        // A faint pixel does not widen the range.
        density.sums[100] = 0.05;
        density.z_sums.as_mut().unwrap()[100] = 0.05 * 9.0;
        assert_eq!(z_range(&density, 1.0), [0.0, 0.98]);
        let mut one = Density::new([2, 1], true);
        one.count([0.0, 0.0], 0.25);
        assert_eq!(z_range(&one, 1.0), [-0.25, 0.75]);
    }

    #[test]
    fn the_file_says_how_large_its_pixels_are() {
        let mut density = Density::new([4, 2], false);
        density.count([1.0, 1.0], 0.0);
        let options = PictureOptions::default();
        let bytes = png(&density, &options, Some([10.0, 10.0]), "1 localization".to_owned()).unwrap();
        let reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let info = reader.info();
        let dimensions = info.pixel_dims.unwrap();
        assert_eq!((dimensions.xppu, dimensions.yppu), (100_000_000, 100_000_000));
        assert_eq!(
            info.uncompressed_latin1_text[0].text,
            "1 localization; full brightness is 1 localizations per pixel"
        );
        assert_eq!(info.palette.as_ref().unwrap()[255 * 3..], [255; 3]);
    }
}
