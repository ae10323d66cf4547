//! Every format, from bytes to frames: correct results, refusals, and that nothing panics.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{
    DecodeError, Enough, Format, Frame, Limits, METADATA_BYTES_MAX, Samples,
    corpus::{self, HEIGHT, LIMITS, WIDTH, pixels, rgb, whole},
    decode, header,
};
use crate::{error::InferError, random::Random};
use png::{BitDepth, ColorType};
use turbojpeg::PixelFormat;

/// The one frame of an image, decoded at full size; its header must agree with it.
fn frame(bytes: &[u8]) -> Frame {
    let mut frames = frames(bytes);
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

fn frames(bytes: &[u8]) -> Vec<Frame> {
    let header = header(bytes, &LIMITS).unwrap();
    let frames = decode(bytes, &LIMITS, &whole).unwrap();
    let seen = frames.iter().map(|frame| (frame.width, frame.height, 8 * frame.samples.bytes_each() as u8));
    assert!(header.frames().eq(seen), "{header:?}");
    let first = &frames[0];
    let (bits, samples) = match &first.samples {
        Samples::U8(samples) => (8, samples.len()),
        Samples::U16(samples) => (16, samples.len()),
        Samples::F32(samples) => (32, samples.len()),
    };
    assert_eq!(
        (header.width, header.height, header.channels, header.bits),
        (first.width, first.height, first.channels, bits)
    );
    let (width, height) = (first.width as usize, first.height as usize);
    assert_eq!(samples, width * height * usize::from(first.channels));
    assert!(header.decoded_bytes() >= (samples * usize::from(bits / 8)) as u64);
    frames
}

fn u8s(frame: &Frame) -> &[u8] {
    match &frame.samples {
        Samples::U8(samples) => samples,
        Samples::U16(_) | Samples::F32(_) => panic!("more than 8 bits"),
    }
}

fn u16s(frame: &Frame) -> &[u16] {
    match &frame.samples {
        Samples::U16(samples) => samples,
        Samples::U8(_) | Samples::F32(_) => panic!("8 bits, or measured"),
    }
}

fn largest_difference(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    let largest = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max();
    println!("largest difference {largest:?} of 255");
    largest.unwrap_or(0)
}

fn exactly(bytes: &[u8], channels: u8, expected: &[u8]) {
    let frame = frame(bytes);
    assert_eq!(frame.channels, channels);
    assert_eq!(u8s(&frame), expected);
}

/// Soft colours, which a JPEG hardly changes.
fn soft(x: u32, y: u32) -> [u8; 3] {
    [60 + 6 * x as u8, 100 + 5 * y as u8, 200 - 3 * (x + y) as u8]
}

#[test]
fn a_jpeg_comes_back_nearly_as_it_was() {
    let colors = pixels(soft);
    for progressive in [false, true] {
        let bytes = corpus::jpeg(&colors, WIDTH, PixelFormat::RGB, progressive);
        let frame = frame(&bytes);
        assert_eq!((frame.width, frame.height, frame.channels), (20, 12, 3));
        assert!(largest_difference(u8s(&frame), &colors) <= 12);
    }
    let gray = pixels(|x, y| [50 + 8 * x as u8 + y as u8]);
    let frame = frame(&corpus::jpeg(&gray, WIDTH, PixelFormat::GRAY, false));
    assert_eq!(frame.channels, 1);
    assert!(largest_difference(u8s(&frame), &gray) <= 4);
}

/// A PNG with an EXIF chunk behind its signature and header.
fn with_exif(png: &[u8], exif: &[u8]) -> Vec<u8> {
    let chunk = [b"eXIf", exif].concat();
    let mut sum = flate2::Crc::new();
    sum.update(&chunk);
    let length = exif.len() as u32;
    [&png[..33], &length.to_be_bytes(), &chunk, &sum.sum().to_be_bytes(), &png[33..]].concat()
}

#[test]
fn every_orientation_is_applied_to_header_and_pixels() {
    // The corners of the stored image: red, green / blue, white.
    let stored = pixels(|x, y| match (x < WIDTH / 2, y < HEIGHT / 2) {
        (true, true) => [255, 0, 0],
        (false, true) => [0, 255, 0],
        (true, false) => [0, 0, 255],
        (false, false) => [255, 255, 255],
    });
    let stored = corpus::jpeg(&stored, WIDTH, PixelFormat::RGB, false);
    for (orientation, seen) in [
        (1, "rgbw"),
        (2, "grwb"),
        (3, "wbgr"),
        (4, "bwrg"),
        (5, "rbgw"),
        (6, "brwg"),
        (7, "wgbr"),
        (8, "gwrb"),
    ] {
        let frame = frame(&corpus::turned(&stored, orientation));
        let size = if orientation < 5 { (20, 12) } else { (12, 20) };
        assert_eq!((frame.width, frame.height), size, "{orientation}");
        assert_eq!(frame.source, size);
        let (w, h) = (frame.width as usize, frame.height as usize);
        let corner = |x: usize, y: usize| {
            let at = (y * w + x) * 3;
            let color = u8s(&frame)[at..at + 3].iter().map(|v| *v > 127);
            match color.collect::<Vec<_>>()[..] {
                [true, false, false] => 'r',
                [false, true, false] => 'g',
                [false, false, true] => 'b',
                _ => 'w',
            }
        };
        let corners: String =
            [(1, 1), (w - 2, 1), (1, h - 2), (w - 2, h - 2)].map(|(x, y)| corner(x, y)).iter().collect();
        assert_eq!(corners, seen, "{orientation}");
    }
    // Of two EXIF blocks, the first counts.
    let jpeg = corpus::jpeg(&pixels(rgb), WIDTH, PixelFormat::RGB, false);
    for [first, second] in [[6, 1], [1, 6]] {
        let twice = corpus::turned(&corpus::turned(&jpeg, second), first);
        assert_eq!(frame(&twice).width, if first == 6 { HEIGHT } else { WIDTH });
        assert_eq!(crate::image::plain_jpeg(&twice).unwrap().orientation, first);
    }
    // The same block as in a PNG, and as written by software that copies it from a JPEG.
    let exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let plain = |_: &mut png::Encoder<'_, &mut Vec<u8>>| {};
    let depth = BitDepth::Eight;
    let stored = corpus::png((WIDTH, HEIGHT), ColorType::Rgb, depth, &pixels(rgb), plain);
    for prefix in [&b""[..], b"Exif\0\0"] {
        let turned = frame(&with_exif(&stored, &[prefix, exif].concat()));
        assert_eq!((turned.width, turned.height), (12, 20), "{prefix:?}");
        assert_eq!(u8s(&turned)[..3], rgb(0, HEIGHT - 1));
    }
    let turned = frame(&corpus::fixture("turned.webp"));
    assert_eq!((turned.width, turned.height), (12, 20));
    assert_eq!(u8s(&turned)[..3], rgb(0, HEIGHT - 1));
}

#[test]
fn inks_become_light() {
    let frame = frame(&corpus::fixture("cmyk.jpg"));
    assert_eq!(frame.channels, 3);
    let bands = [[255, 0, 0], [0, 155, 0], [255; 3], [0; 3]];
    let expected = pixels(|x, _| bands[x as usize / 5]);
    assert!(largest_difference(u8s(&frame), &expected) <= 12);
}

#[test]
fn png_depths_palettes_and_transparency_are_expanded() {
    let size = (WIDTH, HEIGHT);
    let plain = |_: &mut png::Encoder<'_, &mut Vec<u8>>| {};
    for (depth, bits) in [(BitDepth::One, 1u32), (BitDepth::Two, 2), (BitDepth::Four, 4)] {
        let white = (1 << bits) - 1;
        let level = |x: u32, y: u32| (x + y) % (white + 1);
        let row_bytes = (WIDTH * bits).div_ceil(8) as usize;
        let mut packed = vec![0u8; row_bytes * HEIGHT as usize];
        for y in 0..HEIGHT {
            for x in 0..WIDTH {
                let bit = x * bits;
                packed[y as usize * row_bytes + bit as usize / 8] |=
                    (level(x, y) << (8 - bits - bit % 8)) as u8;
            }
        }
        let gray = corpus::png(size, ColorType::Grayscale, depth, &packed, plain);
        let expected = pixels(|x, y| [(level(x, y) * 255 / white) as u8]);
        exactly(&gray, 1, &expected);

        let palette: Vec<u8> = (0..3 * (white + 1)).map(|i| (i * 5) as u8).collect();
        let indexed = corpus::png(size, ColorType::Indexed, depth, &packed, |encoder| {
            encoder.set_palette(palette);
        });
        let expected = pixels(|x, y| [0, 1, 2].map(|c| ((level(x, y) * 3 + c) * 5) as u8));
        exactly(&indexed, 3, &expected);
    }

    let indices = pixels(|x, y| [((x + y) % 2) as u8]);
    let clear = corpus::png(size, ColorType::Indexed, BitDepth::Eight, &indices, |encoder| {
        encoder.set_palette(vec![9, 8, 7, 200, 100, 50]);
        encoder.set_trns(vec![0, 255]);
    });
    let expected = pixels(|x, y| match (x + y) % 2 {
        0 => [9, 8, 7, 0],
        _ => [200, 100, 50, 255],
    });
    exactly(&clear, 4, &expected);

    let gray_alpha = pixels(|x, y| [x as u8, y as u8]);
    let bytes = corpus::png(size, ColorType::GrayscaleAlpha, BitDepth::Eight, &gray_alpha, plain);
    exactly(&bytes, 2, &gray_alpha);
    exactly(&corpus::fixture("interlaced.png"), 3, &pixels(rgb));
}

#[test]
fn sixteen_bits_stay_sixteen_bits() {
    let wide = pixels(|x, y| [(3001 * x + 17 * y) as u16, 7, 65_535 - x as u16, y as u16]);
    let bytes: Vec<u8> = wide.iter().flat_map(|v| v.to_be_bytes()).collect();
    let size = (WIDTH, HEIGHT);
    let bytes = corpus::png(size, ColorType::Rgba, BitDepth::Sixteen, &bytes, |_| {});
    assert_eq!(u16s(&frame(&bytes)), wide);
}

#[test]
fn lossless_webp_bmp_and_gif_come_back_as_they_were() {
    let colors = pixels(rgb);
    let clear = pixels(|x, y| {
        let [r, g, b] = rgb(x, y);
        [r, g, b, 10 + x as u8]
    });
    exactly(&corpus::webp(&colors, image_webp::ColorType::Rgb8), 3, &colors);
    exactly(&corpus::webp(&clear, image_webp::ColorType::Rgba8), 4, &clear);
    exactly(&corpus::fixture("animated.webp"), 3, &colors);
    exactly(&corpus::bmp(&colors, image::ExtendedColorType::Rgb8), 3, &colors);
    exactly(&corpus::bmp(&clear, image::ExtendedColorType::Rgba8), 4, &clear);
    let few = pixels(|x, y| [[10, 20, 30], [200, 0, 90]][((x + y) % 2) as usize]);
    let opaque = pixels(|x, y| {
        let [r, g, b] = [[10, 20, 30], [200, 0, 90]][((x + y) % 2) as usize];
        [r, g, b, 255]
    });
    exactly(&corpus::gif(&few), 4, &opaque);
    // Around a frame that is smaller than its screen, the screen is transparent.
    let inside = |x: u32, y: u32| (4..14).contains(&x) && (3..9).contains(&y);
    let expected = pixels(|x, y| if inside(x, y) { [200, 100, 50, 255] } else { [0; 4] });
    exactly(&corpus::fixture("offset.gif"), 4, &expected);
}

#[test]
fn lossy_webp_comes_back_nearly_as_it_was() {
    for (name, channels) in [("lossy.webp", 3), ("lossy_alpha.webp", 4)] {
        let frame = frame(&corpus::fixture(name));
        assert_eq!(frame.channels, channels);
        let mean = |samples: &[u8], c: usize, step: usize| {
            let channel = samples.iter().skip(c).step_by(step);
            channel.map(|v| f64::from(*v)).sum::<f64>() / f64::from(WIDTH * HEIGHT)
        };
        for c in 0..3 {
            let got = mean(u8s(&frame), c, usize::from(channels));
            let expected = mean(&pixels(rgb), c, 3);
            assert!((got - expected).abs() < 6.0, "{name}: {got}, {expected}");
        }
    }
}

#[test]
fn lossless_jpeg_xl_and_jpeg_2000_come_back_as_they_were() {
    let alpha = |x: u32, y: u32| (10 * x + y) as u8;
    let colors = pixels(rgb);
    let clear = pixels(|x, y| {
        let [r, g, b] = rgb(x, y);
        [r, g, b, alpha(x, y)]
    });
    let gray = pixels(|x, y| [(12 * x + y) as u8]);
    let gray_alpha = pixels(|x, y| [(12 * x + y) as u8, alpha(x, y)]);
    let wide = pixels(|x, y| [((12 * x + y) as u16 * 257) ^ 0x55]);
    for (names, channels, expected) in [
        (&["jxl_rgb.jxl", "jxl_animated.jxl", "j2k_rgb.jp2", "j2k_tiles.jp2"][..], 3, &colors),
        (&["jxl_rgba.jxl", "j2k_rgba.jp2"], 4, &clear),
        (&["jxl_gray.jxl"], 1, &gray),
        (&["jxl_gray_alpha.jxl", "j2k_gray_alpha.jp2"], 2, &gray_alpha),
    ] {
        for name in names {
            println!("{name}");
            exactly(&corpus::fixture(name), channels, expected);
        }
    }
    for name in ["jxl_wide.jxl", "j2k_wide.jp2"] {
        assert_eq!(u16s(&frame(&corpus::fixture(name))), wide, "{name}");
    }
    // White is white, also of 12 bits.
    let scaled = wide.iter().map(|v| (f64::from(v >> 4) * 65_535.0 / 4095.0).round() as u16);
    assert!(u16s(&frame(&corpus::fixture("j2k_12.jp2"))).iter().copied().eq(scaled));
    let palette = [[10, 20, 30], [200, 0, 90], [0, 255, 7], [90, 91, 92]];
    exactly(&corpus::fixture("j2k_palette.jp2"), 3, &pixels(|x, y| palette[(12 * x + y) as usize % 4]));
}

#[test]
fn lossy_jpeg_xl_and_jpeg_2000_are_what_other_decoders_make_of_them() {
    // A JPEG inside of a JPEG XL is decoded with sums of its own, as each decoder of JPEG has.
    for (name, most) in
        [("jxl_lossy.jxl", 1), ("jxl_hidden.jxl", 1), ("jxl_turned.jxl", 3), ("j2k_bare.j2k", 1)]
    {
        println!("{name}");
        let (stem, _) = name.split_once('.').unwrap();
        let expected = frame(&corpus::fixture(&format!("{stem}.png")));
        let decoded = frame(&corpus::fixture(name));
        assert_eq!((decoded.width, decoded.height), (expected.width, expected.height));
        assert!(largest_difference(u8s(&decoded), u8s(&expected)) <= most, "{name}");
    }
}

#[test]
fn a_jpeg_2000_is_halved_while_it_is_four_times_what_is_wanted() {
    let bytes = corpus::fixture("j2k_halved.jp2");
    let whole = decode(&bytes, &LIMITS, &whole).unwrap().remove(0);
    assert_eq!((whole.width, whole.height), (100, 68));
    for (wanted, times) in [((50, 34), 0), ((13, 8), 0), ((12, 8), 1), ((6, 4), 2), ((1, 1), 3)] {
        let frame = decode(&bytes, &LIMITS, &|w, h| {
            assert_eq!((w, h), (100, 68));
            Some(wanted)
        });
        let frame = frame.unwrap().remove(0);
        let size = (100u32.div_ceil(1 << times), 68u32.div_ceil(1 << times));
        assert_eq!((frame.width, frame.height), size, "for {wanted:?}");
        assert_eq!((frame.source, frame.covered.width), ((100, 68), 100.0 / f64::from(1 << times)));
        let bytes = |enough| header(&bytes, &LIMITS).unwrap().decoded_bytes_for(enough);
        assert_eq!(bytes(&|_, _| Some(wanted)) < bytes(&corpus::whole), times > 0);
        if times == 1 {
            // What Pillow makes of it.
            let expected = self::frame(&corpus::fixture("j2k_halved.png"));
            assert!(largest_difference(u8s(&frame), u8s(&expected)) <= 1);
        }
    }
}

#[test]
fn every_kind_of_tiff_is_read() {
    use tiff::encoder::{Compression, DeflateLevel, colortype as tc};
    let gray = pixels(|x, y| [(12 * x + y) as u8]);
    let wide = pixels(|x, y| [((12 * x + y) as u16 * 257) ^ 0x55]);
    let colors = pixels(rgb);
    for compression in [
        Compression::Uncompressed,
        Compression::Lzw,
        Compression::Deflate(DeflateLevel::Fast),
        Compression::Packbits,
    ] {
        let upside_down: Vec<u8> = gray.iter().rev().copied().collect();
        let bytes = corpus::tiff::<tc::Gray8>(&[gray.clone(), upside_down.clone()], compression);
        let pages = frames(&bytes);
        assert_eq!(u8s(&pages[0]), gray);
        assert_eq!(u8s(&pages[1]), upside_down);
        let pages = frames(&corpus::tiff::<tc::Gray16>(&vec![wide.clone(); 3], compression));
        assert_eq!(pages.len(), 3);
        assert!(pages.iter().all(|page| u16s(page) == wide));
        exactly(&corpus::tiff::<tc::RGB8>(std::slice::from_ref(&colors), compression), 3, &colors);
    }
    let big = frames(&corpus::fixture("big.tif"));
    assert_eq!(u16s(&big[0]), wide);
    assert_eq!(u16s(&big[1])[..20], wide[11 * 20..]);
    exactly(&corpus::fixture("planar.tif"), 3, &colors);
    exactly(&corpus::fixture("tiled.tif"), 3, &colors);
    let palette = frame(&corpus::fixture("palette.png"));
    exactly(&corpus::fixture("palette.tif"), 3, u8s(&palette));
    exactly(&corpus::fixture("white_is_zero.tif"), 1, &gray);
    let alpha = |x: u32, y: u32| (10 * x + y) as u8;
    let expected = pixels(|x, y| {
        let [r, g, b] = rgb(x, y);
        [r, g, b, alpha(x, y)]
    });
    exactly(&corpus::fixture("rgba.tif"), 4, &expected);
    let expected = pixels(|x, y| [(12 * x + y) as u8, alpha(x, y)]);
    exactly(&corpus::fixture("gray_alpha.tif"), 2, &expected);
    let expected: Vec<u8> = gray.iter().map(|v| u8::from(*v > 100) * 255).collect();
    exactly(&corpus::fixture("fax.tif"), 1, &expected);
    let from_jpeg = frame(&corpus::fixture("jpeg.tif"));
    let mean_of = |samples: &[u8]| samples.iter().map(|v| f64::from(*v)).sum::<f64>() / samples.len() as f64;
    let difference = mean_of(u8s(&from_jpeg)) - mean_of(&colors);
    assert!(difference.abs() < 4.0, "{difference}");
}

#[test]
fn measured_values_of_other_writers_are_read() {
    let gray: Vec<f32> = pixels(|x, y| [(12 * x + y) as u8]).into_iter().map(f32::from).collect();
    for name in ["float.tif", "signed.tif", "double.tif", "half.npy"] {
        let frame = frame(&corpus::fixture(name));
        assert_eq!((frame.channels, &frame.samples), (1, &Samples::F32(gray.clone())), "{name}");
    }
    let colors = pixels(rgb).into_iter().map(|value| f32::from(value) - 100.0).collect();
    let planes = frame(&corpus::fixture("planes.npy"));
    assert_eq!((planes.channels, planes.samples), (3, Samples::F32(colors)));
}

#[test]
fn what_is_no_image_is_refused_with_what_was_tried() {
    let error = decode(b"%!PS-1.7 etc", &LIMITS, &whole).unwrap_err();
    assert_eq!(
        error.to_string(),
        "not an image: tried JPEG, PNG, WebP, BMP, GIF, TIFF, JPEG XL, JPEG 2000, PNM, NPY, but the body begins with the text \
         \"%!PS-1.7 etc\"; curl sends a file by -T FILE, and in a form by -F data=@FILE"
    );
    let other = decode(b"%!\0\x01", &LIMITS, &whole).unwrap_err().to_string();
    assert!(other.ends_with("begins with 25 21 00 01"), "{other}");
    assert!(matches!(InferError::from(error), InferError::Decode(_)));
    assert!(header(b"", &LIMITS).unwrap_err().to_string().ends_with("is empty"));
}

/// The error for both the header and the pixels.
fn refused(bytes: &[u8]) -> String {
    let error = decode(bytes, &LIMITS, &whole).unwrap_err().to_string();
    assert_eq!(header(bytes, &LIMITS).unwrap_err().to_string(), error);
    error
}

#[test]
fn kinds_of_jpeg_and_bmp_that_are_not_read_are_named() {
    let ls = b"\xff\xd8\xff\xf7\0\x0b\x08\0\x0c\0\x14\x01\x01\x11\0\xff\xda\0\x08\x01\x01\0\0\0\0";
    assert!(refused(ls).starts_with("JPEG with JPEG-LS compression is not supported; "));
    let mut jpeg = corpus::jpeg(&pixels(rgb), WIDTH, PixelFormat::RGB, false);
    let frame = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    jpeg[frame + 1] = 0xc5;
    assert!(refused(&jpeg).starts_with("JPEG with hierarchical frames is not supported; "));

    let bmp = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = corpus::bmp(&pixels(rgb), image::ExtendedColorType::Rgb8);
        change(&mut bytes);
        bytes
    };
    for (compression, what) in [
        (4, "JPEG compression"),
        (5, "PNG compression"),
        (6, "compression 6 (bit fields with alpha)"),
        (11, "CMYK format"),
    ] {
        let error = refused(&bmp(&|bytes| bytes[30] = compression));
        assert!(error.starts_with(&format!("BMP with {what} is not supported; ")), "{error}");
    }
    for size in [16, 64] {
        let error = refused(&bmp(&|bytes| bytes[14] = size));
        assert!(
            error.starts_with(&format!("BMP with a header of {size} bytes, as OS/2 2.x has it,")),
            "{error}"
        );
    }
    // The reserved bytes in the first header may have any value.
    exactly(&bmp(&|bytes| bytes[6..10].copy_from_slice(b"abcd")), 3, &pixels(rgb));
}

#[test]
fn a_damaged_chunk_of_a_png_is_told_in_words() {
    let plain = |_: &mut png::Encoder<'_, &mut Vec<u8>>| {};
    let mut bytes = corpus::png((WIDTH, HEIGHT), ColorType::Rgb, BitDepth::Eight, &pixels(rgb), plain);
    let at = bytes.windows(4).position(|w| w == b"IEND").unwrap();
    // The checksum in front of it.
    bytes[at - 5] ^= 1;
    let error = decode(&bytes, &LIMITS, &whole).unwrap_err().to_string();
    assert!(error.contains("CRC error: ") && error.ends_with(" while decoding IDAT chunk"), "{error}");
}

#[test]
fn zeros_before_the_end_of_a_jpeg_are_passed_over_where_it_is_whole_without() {
    let photo = corpus::photo(64, 48, 1);
    for progressive in [false, true] {
        let file = corpus::jpeg(&photo, 64, PixelFormat::RGB, progressive);
        let expected = frame(&file);
        let body = file.strip_suffix(&[0xff, 0xd9]).unwrap();
        let ending = |stray: &[u8]| [body, stray, &[0xff, 0xd9]].concat();
        for zeros in [1, 4, 12, 1000] {
            assert_eq!(frame(&ending(&vec![0; zeros])), expected, "{zeros}");
        }
        let padded = header(&ending(&[0; 12]), &LIMITS).unwrap();
        assert_eq!(padded.work_bytes, header(&file, &LIMITS).unwrap().work_bytes + file.len() as u64);
        let refused = |bytes: &[u8]| {
            let error = decode(bytes, &LIMITS, &whole).unwrap_err().to_string();
            assert!(error.contains("extraneous bytes before marker 0xd9"), "{error}");
        };
        refused(&ending(&[7; 12]));
        refused(&ending(&[[7; 12], [0; 12]].concat()));
        // Zeros in the place of lost codes, and some more.
        let lost = body.len() - 200;
        refused(&[&body[..lost], &[0; 1200], &[0xff, 0xd9]].concat());
    }
}

/// All frames from the decoder itself, whose panics are not caught.
fn decoded_as(
    format: Format,
    bytes: &[u8],
    limits: &Limits,
    enough: Enough<'_>,
) -> Result<Vec<Frame>, DecodeError> {
    let image = super::open_as(format, bytes, limits, super::Pages::Pictures)?;
    (0..image.frame_count()).map(|index| image.decoded(index, enough)).collect()
}

#[test]
fn a_truncated_image_is_refused_at_every_length() {
    for (name, format, bytes) in corpus::every_kind() {
        decoded_as(format, &bytes, &LIMITS, &whole).unwrap_or_else(|error| {
            panic!("{name} as a whole: {error}");
        });
        let mut accepted = Vec::new();
        for length in 0..bytes.len() {
            if decoded_as(format, &bytes[..length], &LIMITS, &whole).is_ok() {
                accepted.push(length);
            }
        }
        assert!(accepted.is_empty(), "{name} of {} bytes was accepted when cut to {accepted:?}", bytes.len());
    }
}

#[test]
fn mutated_images_never_panic() {
    const MUTATIONS: usize = 2000;
    let limits = Limits { side_max: 2048, pixels_max: 1 << 18, frames_max: 8 };
    let images = corpus::every_kind();
    for format in Format::ALL {
        let of_format: Vec<_> = images.iter().filter(|image| image.1 == format).collect();
        let mut refused = 0;
        for seed in 0..MUTATIONS {
            let mut random = Random::new(seed as u64);
            let (name, _, bytes) = of_format[seed % of_format.len()];
            let mut bytes = bytes.clone();
            for _ in 0..1 + random.below(6) {
                let at = random.below(bytes.len());
                match random.below(6) {
                    0 => bytes[at] = 0xff,
                    1 => bytes[at] = 0,
                    2 => bytes[at] ^= 1 << random.below(8),
                    3 => bytes.insert(at, random.below(256) as u8),
                    4 if bytes.len() > 1 => drop(bytes.remove(at)),
                    _ => bytes[at] = random.below(256) as u8,
                }
            }
            match std::panic::catch_unwind(|| decoded_as(format, &bytes, &limits, &whole).is_ok()) {
                Ok(accepted) => refused += usize::from(!accepted),
                Err(_) => panic!("{format} {name} panics with seed {seed}"),
            }
        }
        println!("{format}: {refused} of {MUTATIONS} mutations refused");
        assert!(refused > 0);
    }
}

fn too_large(bytes: &[u8], limits: &Limits, named: &str, value: u64) {
    for error in [header(bytes, limits).unwrap_err(), decode(bytes, limits, &whole).unwrap_err()] {
        match InferError::from(error) {
            InferError::TooLarge { option, got, .. } => {
                assert_eq!((option, got), (named, value));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn images_that_claim_too_much_are_refused_by_their_headers() {
    let limits = Limits { side_max: 30_000, ..LIMITS };
    let square = 20_000u64 * 20_000;
    // The size is in the header. There is next to nothing of the pixels, so none can have been read.
    let mut png = corpus::png((8, 8), ColorType::Grayscale, BitDepth::One, &[0; 8], |_| {});
    png[16..24].copy_from_slice(&[0, 0, 0x4e, 0x20, 0, 0, 0x4e, 0x20]);
    // The header's checksum; a wrong one would be an error of its own.
    let mut sum = !0u32;
    for byte in &png[12..29] {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ ((sum & 1) * 0xedb8_8320);
        }
    }
    png[29..33].copy_from_slice(&(!sum).to_be_bytes());
    too_large(&png, &limits, "image_pixels_max", square);

    let entries = [
        (256, 4, 1, 20_000),
        (257, 4, 1, 20_000),
        (258, 3, 1, 8),
        (259, 3, 1, 8),
        (262, 3, 1, 1),
        (273, 4, 1, 8),
        (277, 3, 1, 1),
        (278, 4, 1, 20_000),
        (279, 4, 1, 4),
    ];
    too_large(&corpus::raw_tiff(&entries, 0, &[]), &limits, "image_pixels_max", square);

    let mut jpeg = corpus::jpeg(&[0; 3], 1, PixelFormat::RGB, false);
    let at = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    jpeg[at + 5..at + 9].copy_from_slice(&[0x4e, 0x20, 0x4e, 0x20]);
    too_large(&jpeg, &limits, "image_pixels_max", square);
    too_large(&jpeg, &LIMITS, "image_side_max", 20_000);

    let mut gif = corpus::fixture("offset.gif");
    // The first frame, not the screen.
    let at = 13 + 3 * (2 << (gif[10] & 7));
    assert_eq!(gif[at], 0x2c);
    gif[at + 5..at + 9].copy_from_slice(&[0x20, 0x4e, 0x20, 0x4e]);
    too_large(&gif, &limits, "image_pixels_max", square);

    let mut bmp = corpus::bmp(&pixels(rgb), image::ExtendedColorType::Rgb8);
    bmp[18..26].copy_from_slice(&[0x20, 0x4e, 0, 0, 0x20, 0x4e, 0, 0]);
    too_large(&bmp, &limits, "image_pixels_max", square);

    let mut jpeg2000 = corpus::fixture("j2k_bare.j2k");
    for at in [8, 12, 24, 28] {
        jpeg2000[at..at + 4].copy_from_slice(&20_000u32.to_be_bytes());
    }
    too_large(&jpeg2000, &limits, "image_pixels_max", square);

    // Both sides are numbers of 18 bits, and all else is as usual.
    too_large(b"\xff\x0a\xfc\x70\x02\x7e\x38\x31\0\0", &limits, "image_pixels_max", square);

    let mut webp = corpus::fixture("turned.webp");
    webp[24..30].copy_from_slice(&[0x1f, 0x4e, 0, 0x1f, 0x4e, 0]);
    too_large(&webp, &limits, "image_pixels_max", square);
}

#[test]
fn streams_inside_a_container_may_not_be_larger_than_it_says() {
    let mut webp = corpus::fixture("lossy_alpha.webp");
    let at = webp.windows(3).position(|w| w == [0x9d, 0x01, 0x2a]).unwrap();
    webp[at + 3..at + 7].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    let error = decode(&webp, &LIMITS, &whole).unwrap_err().to_string();
    assert!(error.contains("disagree"), "{error}");

    let mut tiff = corpus::fixture("jpeg.tif");
    let at = tiff.windows(3).position(|w| w == [0xff, 0xc0, 0]).unwrap();
    tiff[at + 5..at + 9].copy_from_slice(&[0x3f, 0xff, 0x3f, 0xff]);
    let error = decode(&tiff, &LIMITS, &whole).unwrap_err().to_string();
    assert!(error.contains("a JPEG stream in it has 16383 x 16383 px instead of 20 x 12"), "{error}");
}

/// Each page would read the stream from its beginning: as often as a file may have pages.
#[test]
fn pages_may_not_share_a_jpeg_stream() {
    let one = corpus::fixture("jpeg.tif");
    assert!(one.starts_with(b"II*\0"));
    let number = |at: usize| u32::from_le_bytes(one[at..at + 4].try_into().unwrap()) as usize;
    let first = number(4);
    let next = first + 2 + 12 * usize::from(u16::from_le_bytes([one[first], one[first + 1]]));
    assert_eq!(number(next), 0, "one page");
    let (mut many, mut link) = (one.clone(), next);
    for _ in 0..10 {
        let at = many.len().next_multiple_of(2);
        many.resize(at, 0);
        many.extend_from_slice(&one[first..next + 4]);
        many[link..link + 4].copy_from_slice(&(at as u32).to_le_bytes());
        link = at + next - first;
    }
    decode(&one, &LIMITS, &whole).unwrap();
    let error = decode(&many, &LIMITS, &whole).unwrap_err().to_string();
    assert!(error.contains("streams overlap"), "{error}");
}

#[test]
fn frames_are_counted_and_their_pixels_added_up() {
    use tiff::encoder::{Compression, colortype::Gray8};
    let page = pixels(|_, _| [0u8]);
    let bytes = corpus::tiff::<Gray8>(&vec![page; 10], Compression::Uncompressed);
    let few = Limits { frames_max: 9, ..LIMITS };
    too_large(&bytes, &few, "image_frames_max", 10);
    let small = Limits { pixels_max: 9 * 240, ..LIMITS };
    too_large(&bytes, &small, "image_pixels_max", 2400);
    assert_eq!(frames(&bytes).len(), 10);
}

#[test]
fn directories_that_loop_and_counts_that_lie_are_refused() {
    let entry = |count| {
        [
            (256, 4, 1, 4),
            (257, 4, 1, 4),
            (258, 3, 1, 8),
            (262, 3, 1, 1),
            (273, 4, count, 8),
            (278, 4, 1, 4),
            (279, 4, count, 16),
        ]
    };
    decode(&corpus::raw_tiff(&entry(1), 0, &[0; 16]), &LIMITS, &whole).unwrap();
    for bytes in [
        corpus::raw_tiff(&entry(1), 8, &[0; 16]),
        corpus::raw_tiff(&entry(u32::MAX), 0, &[0; 16]),
        corpus::raw_tiff(&entry(1 << 24), 0, &[0; 16]),
    ] {
        let error = decode(&bytes, &LIMITS, &whole).unwrap_err();
        assert!(matches!(error, DecodeError::Corrupt { .. }), "{error}");
    }
}

#[test]
fn a_jpeg_of_several_scans_takes_memory_for_all_coefficients() {
    let jpeg = |progressive| corpus::jpeg(&pixels(rgb), WIDTH, PixelFormat::RGB, progressive);
    let bytes = |file: &[u8]| header(file, &LIMITS).unwrap().decoded_bytes();
    let mut baseline = jpeg(false);
    let (one, all) = (bytes(&baseline), bytes(&jpeg(true)));
    assert_eq!(all, one + u64::from(WIDTH * HEIGHT) * 3 * 2);
    // The first scan has one of the three components: the others have scans of their own.
    let scan = baseline.windows(2).rposition(|w| w == [0xff, 0xda]).unwrap();
    assert_eq!(baseline[scan + 4], 3);
    baseline[scan + 4] = 1;
    assert_eq!(bytes(&baseline), all);
}

#[test]
fn what_is_turned_or_of_inks_takes_memory_for_that() {
    let bytes = |file: &[u8]| header(file, &LIMITS).unwrap().decoded_bytes();
    let jpeg = corpus::jpeg(&pixels(rgb), WIDTH, PixelFormat::RGB, false);
    let whole = u64::from(WIDTH * HEIGHT) * 3;
    assert_eq!([1, 6].map(|orientation| bytes(&corpus::turned(&jpeg, orientation))), [whole, 2 * whole]);
    assert_eq!(bytes(&corpus::fixture("cmyk.jpg")), whole + u64::from(WIDTH * HEIGHT) * 4);
}

#[test]
fn a_png_has_room_for_so_much_beside_its_pixels() {
    let plain = |_: &mut png::Encoder<'_, &mut Vec<u8>>| {};
    let stored = corpus::png((WIDTH, HEIGHT), ColorType::Rgb, BitDepth::Eight, &pixels(rgb), plain);
    for (exif, fits) in [(METADATA_BYTES_MAX / 2, true), (3 * METADATA_BYTES_MAX, false)] {
        let bytes = with_exif(&stored, &vec![0; exif]);
        assert_eq!(header(&bytes, &LIMITS).is_ok(), fits, "{exif} bytes");
    }
}

#[test]
fn a_lossless_jpeg_is_charged_at_its_full_size() {
    let mut file = corpus::jpeg(&corpus::photo(405, 301, 1), 405, PixelFormat::RGB, false);
    let few = |_, _| Some((50, 37));
    let bytes = |file: &[u8]| {
        let header = header(file, &LIMITS).unwrap();
        [header.decoded_bytes(), header.decoded_bytes_for(&few)]
    };
    let [whole, scaled] = bytes(&file);
    assert!(scaled < whole / 8, "{scaled} of {whole}");
    // The frame header of a lossless JPEG, which is not scaled.
    let frame = file.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    file[frame + 1] = 0xc3;
    assert_eq!(bytes(&file), [whole, whole]);
}

#[test]
fn more_progressive_scans_than_anyone_writes_are_refused() {
    let bytes = corpus::jpeg(&pixels(rgb), WIDTH, PixelFormat::RGB, true);
    // The last scan again and again: a refinement that changes nothing but costs a pass each. No pixel is decoded to find that.
    let scan = bytes.windows(2).rposition(|w| w == [0xff, 0xda]).unwrap();
    let (before, last) = bytes[..bytes.len() - 2].split_at(scan);
    let mut many = before.to_vec();
    for _ in 0..200 {
        many.extend(last);
    }
    many.extend([0xff, 0xd9]);
    let error = header(&many, &LIMITS).unwrap_err().to_string();
    assert!(error.contains("a scan of it repeats another"), "{error}");
}

#[test]
fn a_jpeg_is_decoded_at_the_smallest_scale_that_is_twice_what_is_wanted() {
    let bytes = corpus::jpeg(&corpus::photo(405, 301, 1), 405, PixelFormat::RGB, false);
    for (wanted, size) in [
        ((202, 150), (405, 301)),
        ((101, 75), (203, 151)),
        ((50, 75), (203, 151)),
        ((50, 38), (102, 76)),
        ((20, 19), (51, 38)),
        ((1, 1), (51, 38)),
    ] {
        let frame = decode(&bytes, &LIMITS, &|w, h| {
            assert_eq!((w, h), (405, 301));
            Some(wanted)
        });
        let frame = frame.unwrap().remove(0);
        assert_eq!((frame.width, frame.height), size, "for {wanted:?}");
        assert_eq!(frame.source, (405, 301));
        let eighths = if size.0 == 405 { 1.0 } else { f64::from(size.0) / 405.0 };
        assert!((frame.covered.width - 405.0 * eighths).abs() < 1.0);
        let header = header(&bytes, &LIMITS).unwrap();
        assert_eq!(header.decoded_bytes_for(&|_, _| Some(wanted)), u64::from(size.0) * u64::from(size.1) * 3);
    }
    // `enough` gets the image's size as seen.
    let turned = corpus::turned(&bytes, 6);
    let frame = decode(&turned, &LIMITS, &|w, h| {
        assert_eq!((w, h), (301, 405));
        Some((30, 101))
    });
    let frame = frame.unwrap().remove(0);
    assert_eq!((frame.width, frame.height), (151, 203));
    // The partly covered row at the stored bottom is now the column on the left.
    assert_eq!((frame.covered.left, frame.covered.width), (0.5, 150.5));
}

#[test]
fn pages_that_share_a_list_of_strips_do_not_have_more_of_them_than_a_file_may() {
    const STRIPS: u32 = 8192;
    // The strip of each row of each page is the same byte.
    let list = |value: u32| (0..STRIPS).flat_map(move |_| value.to_le_bytes());
    let pages = |count: u32| {
        let (offsets, counts, strip) = (8, 8 + 4 * STRIPS, 8 + 8 * STRIPS);
        let mut bytes = [b"II*\0", &(strip + 2).to_le_bytes()[..]].concat();
        bytes.extend(list(strip).chain(list(1)));
        bytes.extend([7, 0]);
        for page in 0..count {
            let entries = [
                (256, 4, 1, 1),
                (257, 4, 1, STRIPS),
                (258, 3, 1, 8),
                (262, 3, 1, 1),
                (273, 4, STRIPS, offsets),
                (278, 4, 1, 1),
                (279, 4, STRIPS, counts),
            ];
            let end = bytes.len() as u32 + 2 + 12 * entries.len() as u32 + 4;
            let next = if page + 1 < count { end } else { 0 };
            bytes.extend(&corpus::raw_tiff(&entries, next, &[])[8..]);
        }
        bytes
    };
    let limits = Limits { frames_max: 200, ..LIMITS };
    let frames = decode(&pages(2), &limits, &whole).unwrap();
    assert!(frames.len() == 2 && frames.iter().all(|frame| frame.samples == Samples::U8(vec![7; 8192])));
    let error = header(&pages(129), &limits).unwrap_err().to_string();
    assert!(error.contains("more than 1048576 strips or tiles in all of its pages"), "{error}");
}

#[test]
fn a_decoder_that_panics_makes_a_file_that_cannot_be_decoded() {
    let told = super::guarded(Format::Png, || -> Result<(), DecodeError> { panic!("a bug of the decoder") });
    let told = told.unwrap_err().to_string();
    assert!(told.contains("the decoder gave up on it"), "{told}");
}
