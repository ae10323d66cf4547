//! Test images: made by encoders here, or read from `tests/fixtures/images` (see `make_images.py` there).

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{Format, Limits};
use crate::random::Random;
use image::ImageEncoder;
use std::{io::Cursor, path::Path};
use tiff::{encoder, tags::Tag};
use turbojpeg::{Colorspace, Compressor, Image, PixelFormat, Subsamp};

/// Room for every image here.
pub(super) const LIMITS: Limits = Limits { side_max: 8192, pixels_max: 1 << 24, frames_max: 64 };

/// The size of the fixtures.
pub(super) const WIDTH: u32 = 20;
pub(super) const HEIGHT: u32 = 12;

/// Decoding at full size.
pub(super) fn whole(_: u32, _: u32) -> Option<(u32, u32)> {
    None
}

/// The red, green and blue that `make_images.py` gives the pixel at column `x` and row `y`.
pub(super) fn rgb(x: u32, y: u32) -> [u8; 3] {
    [(12 * x) as u8, (20 * y) as u8, (x * y) as u8]
}

/// A value for every pixel of the fixtures.
pub(super) fn pixels<T, const C: usize>(pixel: impl Fn(u32, u32) -> [T; C]) -> Vec<T> {
    (0..HEIGHT).flat_map(|y| (0..WIDTH).map(move |x| (x, y))).flat_map(|(x, y)| pixel(x, y)).collect()
}

/// RGB that looks like a photo to a codec: wide gradients, edges, and noise.
pub(super) fn photo(width: u32, height: u32, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut pixels = Vec::with_capacity((width * height * 3) as usize);
    for y in 0..height {
        for x in 0..width {
            let (u, v) = (x as f32 / width as f32, y as f32 / height as f32);
            let wave = (u * 19.0 + v * 7.0).sin() * 40.0 + (v * 31.0).cos() * 25.0;
            let edge = if (x / 37 + y / 53) % 2 == 0 { 30.0 } else { 0.0 };
            let noise = random.below(25) as f32 - 12.0;
            for base in [200.0 * u, 180.0 * v, 120.0 * (1.0 - u)] {
                pixels.push((base + wave + edge + noise + 30.0).clamp(0.0, 255.0) as u8);
            }
        }
    }
    pixels
}

pub(super) fn jpeg(pixels: &[u8], width: u32, format: PixelFormat, progressive: bool) -> Vec<u8> {
    let subsampling = match format {
        PixelFormat::GRAY => Subsamp::Gray,
        PixelFormat::CMYK => Subsamp::None,
        _ => Subsamp::Sub2x2,
    };
    jpeg_sampled(pixels, width, format, subsampling, progressive)
}

pub(super) fn jpeg_sampled(
    pixels: &[u8],
    width: u32,
    format: PixelFormat,
    subsampling: Subsamp,
    progressive: bool,
) -> Vec<u8> {
    let space = match format {
        PixelFormat::GRAY => Colorspace::Gray,
        PixelFormat::CMYK => Colorspace::YCCK,
        _ => Colorspace::YCbCr,
    };
    let mut compressor = Compressor::new().unwrap();
    compressor.set_quality(90).unwrap();
    compressor.set_subsamp(subsampling).unwrap();
    compressor.set_colorspace(space).unwrap();
    compressor.set_progressive(progressive).unwrap();
    let pitch = width as usize * format.size();
    compressor
        .compress_to_vec(Image { pixels, width: width as usize, pitch, height: pixels.len() / pitch, format })
        .unwrap()
}

/// A JPEG with an EXIF block that says how the camera was held.
pub(super) fn turned(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let mut exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
    exif.extend([orientation, 0, 0, 0, 0, 0, 0]);
    let mut bytes = jpeg[..2].to_vec();
    bytes.extend([0xff, 0xe1]);
    bytes.extend((exif.len() as u16 + 2).to_be_bytes());
    bytes.extend(exif);
    bytes.extend(&jpeg[2..]);
    bytes
}

/// A PNG; `more` sets palette and transparency.
pub(super) fn png(
    (width, height): (u32, u32),
    color: png::ColorType,
    depth: png::BitDepth,
    data: &[u8],
    more: impl FnOnce(&mut png::Encoder<'_, &mut Vec<u8>>),
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    more(&mut encoder);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(data).unwrap();
    writer.finish().unwrap();
    bytes
}

pub(super) fn bmp(pixels: &[u8], color: image::ExtendedColorType) -> Vec<u8> {
    let mut bytes = Vec::new();
    image::codecs::bmp::BmpEncoder::new(&mut bytes).write_image(pixels, WIDTH, HEIGHT, color).unwrap();
    bytes
}

pub(super) fn gif(pixels: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    image::codecs::gif::GifEncoder::new(&mut bytes)
        .encode(pixels, WIDTH, HEIGHT, image::ExtendedColorType::Rgb8)
        .unwrap();
    bytes
}

pub(super) fn webp(pixels: &[u8], color: image_webp::ColorType) -> Vec<u8> {
    let mut bytes = Vec::new();
    image_webp::WebPEncoder::new(&mut bytes).encode(pixels, WIDTH, HEIGHT, color).unwrap();
    bytes
}

/// A TIFF of one page per element, all of the fixtures' size.
pub(super) fn tiff<C: encoder::colortype::ColorType>(
    pages: &[Vec<C::Inner>],
    compression: encoder::Compression,
) -> Vec<u8>
where
    [C::Inner]: encoder::TiffValue,
{
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = encoder::TiffEncoder::new(&mut bytes).unwrap().with_compression(compression);
    for page in pages {
        let mut image = writer.new_image::<C>(WIDTH, HEIGHT).unwrap();
        image.encoder().write_tag(Tag::Software, "tests").unwrap();
        image.write_data(page).unwrap();
    }
    bytes.into_inner()
}

/// A little-endian TIFF of one directory, from (tag, type, count, value) and what follows the directory.
pub(super) fn raw_tiff(entries: &[(u16, u16, u32, u32)], next: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"II*\0\x08\0\0\0".to_vec();
    bytes.extend((entries.len() as u16).to_le_bytes());
    for (tag, kind, count, value) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(next.to_le_bytes());
    bytes.extend(data);
    bytes
}

/// A NumPy array of this type and shape.
pub(crate) fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    npy_in_order("False", descr, shape, data)
}

/// The same, with what is said of its order.
pub(super) fn npy_in_order(fortran: &str, descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    let text = format!("{text:<117}\n");
    [b"\x93NUMPY\x01\0", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), data].concat()
}

pub(super) fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images");
    std::fs::read(path.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Small images of every kind that is decoded.
pub(super) fn every_kind() -> Vec<(&'static str, Format, Vec<u8>)> {
    use encoder::{Compression, DeflateLevel, colortype as tc};
    use png::{BitDepth, ColorType};
    let size = (WIDTH, HEIGHT);
    let rgb8 = pixels(rgb);
    let rgba8 = pixels(|x, y| {
        let [r, g, b] = rgb(x, y);
        [r, g, b, (x + y) as u8 * 8]
    });
    let gray8 = pixels(|x, y| [(12 * x + y) as u8]);
    let gray16 = pixels(|x, y| [(3000 * x + 17 * y) as u16]);
    let gray16_bytes: Vec<u8> = gray16.iter().flat_map(|v| v.to_be_bytes()).collect();
    let rgb16 = pixels(|x, y| rgb(x, y).map(|v| u16::from(v) * 200));
    let ycck = pixels(|x, y| {
        let [r, g, b] = rgb(x, y);
        [r, g, b, 200]
    });
    let plain = |_: &mut png::Encoder<'_, &mut Vec<u8>>| {};
    let two = vec![gray8.clone(), gray8.iter().map(|v| 255 - v).collect()];
    let deflate = Compression::Deflate(DeflateLevel::Fast);
    let mut images = vec![
        ("baseline", Format::Jpeg, jpeg(&rgb8, WIDTH, PixelFormat::RGB, false)),
        ("progressive", Format::Jpeg, jpeg(&rgb8, WIDTH, PixelFormat::RGB, true)),
        ("grey jpeg", Format::Jpeg, jpeg(&gray8, WIDTH, PixelFormat::GRAY, false)),
        ("ycck", Format::Jpeg, jpeg(&ycck, WIDTH, PixelFormat::CMYK, false)),
        ("turned", Format::Jpeg, turned(&jpeg(&rgb8, WIDTH, PixelFormat::RGB, false), 6)),
        ("rgb png", Format::Png, png(size, ColorType::Rgb, BitDepth::Eight, &rgb8, plain)),
        ("rgba png", Format::Png, png(size, ColorType::Rgba, BitDepth::Eight, &rgba8, plain)),
        ("16-bit png", Format::Png, png(size, ColorType::Grayscale, BitDepth::Sixteen, &gray16_bytes, plain)),
        ("rgb bmp", Format::Bmp, bmp(&rgb8, image::ExtendedColorType::Rgb8)),
        ("rgba bmp", Format::Bmp, bmp(&rgba8, image::ExtendedColorType::Rgba8)),
        ("grey bmp", Format::Bmp, bmp(&gray8, image::ExtendedColorType::L8)),
        ("gif", Format::Gif, gif(&rgb8)),
        ("rgb webp", Format::WebP, webp(&rgb8, image_webp::ColorType::Rgb8)),
        ("rgba webp", Format::WebP, webp(&rgba8, image_webp::ColorType::Rgba8)),
        ("two pages", Format::Tiff, tiff::<tc::Gray8>(&two, Compression::Uncompressed)),
        ("lzw", Format::Tiff, tiff::<tc::Gray16>(std::slice::from_ref(&gray16), Compression::Lzw)),
        ("deflate", Format::Tiff, tiff::<tc::RGB16>(std::slice::from_ref(&rgb16), deflate)),
        ("grey pnm", Format::Pnm, [format!("P5 {WIDTH} {HEIGHT} 255\n").as_bytes(), &gray8].concat()),
        ("rgb pnm", Format::Pnm, [format!("P6\n{WIDTH} {HEIGHT}\n255\n").as_bytes(), &rgb8].concat()),
        (
            "16-bit pnm",
            Format::Pnm,
            [format!("P5 {WIDTH} {HEIGHT} 65535\n").as_bytes(), &gray16_bytes].concat(),
        ),
        ("rgb npy", Format::Npy, npy("|u1", &format!("({HEIGHT}, {WIDTH}, 3)"), &rgb8)),
        ("two npy", Format::Npy, npy("|u1", &format!("(2, {HEIGHT}, {WIDTH}, 1)"), &two.concat())),
        (
            "16-bit npy",
            Format::Npy,
            npy("<u2", &format!("({HEIGHT}, {WIDTH})"), bytemuck::cast_slice(&gray16)),
        ),
        ("packbits", Format::Tiff, tiff::<tc::RGB8>(std::slice::from_ref(&rgb8), Compression::Packbits)),
    ];
    for (name, format) in [
        ("interlaced.png", Format::Png),
        ("palette.png", Format::Png),
        ("lossy.webp", Format::WebP),
        ("lossy_alpha.webp", Format::WebP),
        ("turned.webp", Format::WebP),
        ("animated.webp", Format::WebP),
        ("cmyk.jpg", Format::Jpeg),
        ("offset.gif", Format::Gif),
        ("palette.tif", Format::Tiff),
        ("fax.tif", Format::Tiff),
        ("jpeg.tif", Format::Tiff),
        ("planar.tif", Format::Tiff),
        ("tiled.tif", Format::Tiff),
        ("zstd.tif", Format::Tiff),
        ("big.tif", Format::Tiff),
        ("white_is_zero.tif", Format::Tiff),
        ("rgba.tif", Format::Tiff),
        ("gray_alpha.tif", Format::Tiff),
        ("jxl_rgb.jxl", Format::Jxl),
        ("jxl_rgba.jxl", Format::Jxl),
        ("jxl_gray_alpha.jxl", Format::Jxl),
        ("jxl_wide.jxl", Format::Jxl),
        ("jxl_lossy.jxl", Format::Jxl),
        ("jxl_hidden.jxl", Format::Jxl),
        ("jxl_turned.jxl", Format::Jxl),
        ("jxl_animated.jxl", Format::Jxl),
        ("j2k_rgb.jp2", Format::Jpeg2000),
        ("j2k_rgba.jp2", Format::Jpeg2000),
        ("j2k_gray_alpha.jp2", Format::Jpeg2000),
        ("j2k_12.jp2", Format::Jpeg2000),
        ("j2k_tiles.jp2", Format::Jpeg2000),
        ("j2k_palette.jp2", Format::Jpeg2000),
        ("j2k_bare.j2k", Format::Jpeg2000),
    ] {
        images.push((name, format, fixture(name)));
    }
    images.extend(super::tiff::tests::kinds().map(|(name, bytes)| (name, Format::Tiff, bytes)));
    images
}
