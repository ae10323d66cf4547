//! TIFFs put together tag by tag: kinds for which there is no fixture.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::super::{
    DecodeError, Frame, Limits, Pages, Samples,
    corpus::{HEIGHT, WIDTH, jpeg, raw_tiff, whole},
    decode, header, open, open_pages,
};
use turbojpeg::PixelFormat;

mod measured;
mod padding;
mod streams;
mod zstd;

const LIMITS: Limits = Limits { side_max: 1000, pixels_max: 1_000_000, frames_max: 10 };

const SUBFILE: u16 = 254;
const OLD_SUBFILE: u16 = 255;
const COMPRESSION: u16 = 259;
const PHOTOMETRIC: u16 = 262;
const FILL_ORDER: u16 = 266;
const ORIENTATION: u16 = 274;
const SAMPLES: u16 = 277;
const ROWS: u16 = 278;
const PLANAR: u16 = 284;
const PREDICTOR: u16 = 317;
const TILE: [u16; 2] = [322, 323];
const EXTRA: u16 = 338;
const SAMPLE_FORMAT: u16 = 339;
const TABLES: u16 = 347;
const SUBSAMPLING: u16 = 530;

/// A directory without the positions of its pixels, and its strips or tiles.
#[derive(Clone)]
struct Page {
    tags: Vec<(u16, Vec<u32>)>,
    chunks: Vec<Vec<u8>>,
}

impl Page {
    /// A page of this size with `samples` of `bits` for each pixel, in one strip (or in tiles, if tags for them are added).
    fn new([width, height]: [u32; 2], bits: u32, samples: u32, chunks: Vec<Vec<u8>>) -> Page {
        let tags = vec![(256, vec![width]), (257, vec![height]), (258, vec![bits; samples as usize])];
        Page { tags, chunks }.with(SAMPLES, &[samples]).with(ROWS, &[height])
    }

    fn with(mut self, tag: u16, values: &[u32]) -> Page {
        self.tags.retain(|(other, _)| *other != tag);
        self.tags.push((tag, values.to_vec()));
        self
    }
}

/// A little-endian file of these pages.
fn file(pages: &[Page]) -> Vec<u8> {
    let mut bytes = b"II*\0\0\0\0\0".to_vec();
    let mut link = 4;
    for Page { tags, chunks } in pages {
        let mut tags = tags.clone();
        let tiled = tags.iter().any(|(tag, _)| *tag == TILE[0]);
        let mut offsets = Vec::new();
        for chunk in chunks {
            offsets.push(bytes.len() as u32);
            bytes.extend(chunk);
        }
        tags.retain(|(tag, _)| !tiled || *tag != ROWS);
        tags.push((if tiled { 324 } else { 273 }, offsets));
        let counts = chunks.iter().map(|chunk| chunk.len() as u32).collect();
        tags.push((if tiled { 325 } else { 279 }, counts));
        tags.sort();
        bytes.resize(bytes.len().next_multiple_of(2), 0);
        let mut table = (tags.len() as u16).to_le_bytes().to_vec();
        for (tag, values) in &tags {
            // SHORT if the values fit, because LONG is not valid for every tag.
            let large = values.iter().any(|value| *value > 0xffff);
            let (kind, size) = if *tag == TABLES { (7u16, 1) } else { [(3, 2), (4, 4)][usize::from(large)] };
            table.extend(tag.to_le_bytes());
            table.extend(kind.to_le_bytes());
            table.extend((values.len() as u32).to_le_bytes());
            let mut inside: Vec<u8> =
                values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(size)).collect();
            if inside.len() > 4 {
                let at = (bytes.len() as u32).to_le_bytes().to_vec();
                bytes.extend(std::mem::replace(&mut inside, at));
            }
            inside.resize(4, 0);
            table.extend(inside);
        }
        let at = (bytes.len() as u32).to_le_bytes();
        bytes[link..link + 4].copy_from_slice(&at);
        link = bytes.len() + table.len();
        bytes.extend(table);
        bytes.extend([0; 4]);
    }
    bytes
}

fn frames(pages: &[Page]) -> Vec<Frame> {
    let bytes = file(pages);
    let frames = decode(&bytes, &LIMITS, &whole).unwrap();
    let header = header(&bytes, &LIMITS).unwrap();
    let sizes = frames.iter().map(|frame| (frame.width, frame.height, 8 * frame.samples.bytes_each() as u8));
    assert!(header.frames().eq(sizes), "{header:?}");
    assert_eq!(header.channels, frames[0].channels);
    frames
}

fn u8s(page: Page) -> (u8, Vec<u8>) {
    let frame = frames(&[page]).remove(0);
    let Samples::U8(samples) = frame.samples else { panic!("16 bits") };
    (frame.channels, samples)
}

/// A sample of a picture in which all differ from their neighbours.
fn sample(x: u32, y: u32, channel: u32) -> u8 {
    (x * 3 + y * 7 + channel * 50) as u8
}

/// The pixels of a picture, with some of its channels.
fn picture([width, height]: [u32; 2], channels: &[u32]) -> Vec<u8> {
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    places.flat_map(|(x, y)| channels.iter().map(move |c| sample(x, y, *c))).collect()
}

/// The tiles of a picture, with some of its channels.
fn in_tiles([width, height]: [u32; 2], channels: &[u32], [across, down]: [u32; 2]) -> Vec<Vec<u8>> {
    let mut tiles = Vec::new();
    for top in (0..height).step_by(down as usize) {
        for left in (0..width).step_by(across as usize) {
            let places = (top..top + down).flat_map(|y| (left..left + across).map(move |x| (x, y)));
            tiles.push(places.flat_map(|(x, y)| channels.iter().map(move |c| sample(x, y, *c))).collect());
        }
    }
    tiles
}

/// The tiles of its planes, one after another.
fn planes_in_tiles(size: [u32; 2], planes: u32, tile: [u32; 2]) -> Vec<Vec<u8>> {
    (0..planes).flat_map(|plane| in_tiles(size, &[plane], tile)).collect()
}

fn packed_by_lzw(chunks: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let encoder = || weezl::encode::Encoder::with_tiff_size_switch(weezl::BitOrder::Msb, 8);
    chunks.into_iter().map(|chunk| encoder().encode(&chunk).unwrap()).collect()
}

/// One file of each kind, for tests that apply to any file.
pub(in crate::image) fn kinds() -> [(&'static str, Vec<u8>); 5] {
    let size = [WIDTH, HEIGHT];
    let colors = |samples, chunks| Page::new(size, 8, samples, chunks).with(PHOTOMETRIC, &[2]);
    let tiles = colors(3, planes_in_tiles(size, 3, [16, 16])).with(PLANAR, &[2]);
    let packed = colors(3, packed_by_lzw(in_tiles(size, &[0, 1, 2], [16, 16]))).with(COMPRESSION, &[5]);
    let more = colors(5, vec![picture(size, &[0, 1, 2, 3, 4])]).with(EXTRA, &[2, 0]);
    let bits = Page::new(size, 1, 1, vec![picture([3, HEIGHT], &[0])]).with(PHOTOMETRIC, &[1]);
    let planes = colors(3, zstd::packed(planes_in_tiles(size, 3, [16, 16]))).with(COMPRESSION, &[50000]);
    let planes = planes.with(PLANAR, &[2]).with(TILE[0], &[16]).with(TILE[1], &[16]);
    [
        ("planes in tiles", file(&[tiles.with(TILE[0], &[16]).with(TILE[1], &[16])])),
        ("tiles packed by LZW", file(&[packed.with(TILE[0], &[16]).with(TILE[1], &[16])])),
        ("planes in tiles packed by zstd", file(&[planes])),
        ("more samples", file(&[bits.clone().with(SUBFILE, &[1]), more])),
        ("bits in the other order", file(&[bits.with(FILL_ORDER, &[2])])),
    ]
}

const SIZE: [u32; 2] = [37, 21];

#[test]
fn planes_in_tiles_that_stand_over_the_picture_are_read() {
    for (samples, [across, down]) in [(3, [16, 16]), (4, [16, 32]), (3, [64, 16]), (3, [48, 32])] {
        let low = planes_in_tiles(SIZE, samples, [across, down]);
        let wide = |v: &u8| (u16::from(*v) * 257).to_le_bytes();
        let high = low.iter().map(|tile| tile.iter().flat_map(wide).collect()).collect();
        let tiled = |bits, chunks| {
            let page = Page::new(SIZE, bits, samples, chunks).with(PHOTOMETRIC, &[2]).with(PLANAR, &[2]);
            page.with(TILE[0], &[across]).with(TILE[1], &[down])
        };
        let channels: Vec<u32> = (0..samples).collect();
        let expected = picture(SIZE, &channels);
        assert_eq!(u8s(tiled(8, low)), (samples as u8, expected.clone()), "{across} x {down}");
        let Samples::U16(found) = frames(&[tiled(16, high)]).remove(0).samples else { panic!("8 bits") };
        assert!(found.iter().map(|v| v / 257).eq(expected.into_iter().map(u16::from)));
    }
}

#[test]
fn tiles_packed_by_lzw_are_read_whatever_their_last_codes_are() {
    let tiled = |size, bits, samples, chunks, [across, down]: [u32; 2]| {
        let page = Page::new(size, bits, samples, packed_by_lzw(chunks)).with(COMPRESSION, &[5]);
        let page = page.with(TILE[0], &[across]).with(TILE[1], &[down]);
        page.with(PHOTOMETRIC, &[if samples == 1 { 1 } else { 2 }])
    };
    for width in 33..=48 {
        let size = [width, 32];
        for tile in [[16, 16], [32, 48], [64, 32]] {
            let name = format!("{width} in {tile:?}");
            let gray = u8s(tiled(size, 8, 1, in_tiles(size, &[0], tile), tile));
            assert_eq!(gray, (1, picture(size, &[0])), "{name}");
            let colors = u8s(tiled(size, 8, 3, in_tiles(size, &[0, 1, 2], tile), tile));
            assert_eq!(colors, (3, picture(size, &[0, 1, 2])), "{name}");
            let planes = tiled(size, 8, 3, planes_in_tiles(size, 3, tile), tile).with(PLANAR, &[2]);
            assert_eq!(u8s(planes), colors, "{name}");
            // A 16-bit sample in the place of two 8-bit samples.
            let wide = tiled(size, 16, 1, in_tiles(size, &[0, 1], tile), tile);
            let Samples::U16(found) = frames(&[wide]).remove(0).samples else { panic!("8 bits") };
            assert_eq!(bytemuck::cast_slice::<u16, u8>(&found), picture(size, &[0, 1]), "{name}");
        }
    }
    // Rows of packed bits, and a palette with these bits as indices: both its interpretation and its size are replaced as it is read.
    let size = [37, 21];
    let bits = |width: u32| (0..32).flat_map(move |y| (0..width / 8).map(move |x| sample(x, y, 0))).collect();
    let plain = Page::new([64, 32], 1, 1, vec![bits(64)]).with(PHOTOMETRIC, &[1]);
    let (_, plain) = u8s(plain);
    let expected: Vec<u8> = plain.chunks(64).take(21).flat_map(|row| &row[..37]).copied().collect();
    let page = tiled(size, 1, 1, vec![bits(64)], [64, 32]);
    assert_eq!(u8s(page.clone()), (1, expected.clone()));
    let palette = page.with(PHOTOMETRIC, &[3]).with(320, &[0, 0xffff, 0, 0xffff, 0, 0xffff]);
    let expected = expected.into_iter().flat_map(|v| [v; 3]).collect();
    assert_eq!(u8s(palette), (3, expected));
}

#[test]
fn jpeg_streams_have_the_samples_of_their_place() {
    let size = [32, 16];
    let gray = jpeg(&picture(size, &[0]), size[0], PixelFormat::GRAY, false);
    let colors = jpeg(&picture(size, &[0, 1, 2]), size[0], PixelFormat::RGB, false);
    let page = |samples, interpretation, chunks| {
        let page = Page::new(size, 8, samples, chunks).with(COMPRESSION, &[7]);
        file(&[page.with(PHOTOMETRIC, &[interpretation])])
    };
    decode(&page(1, 1, vec![gray.clone()]), &LIMITS, &whole).unwrap();
    decode(&page(3, 6, vec![colors.clone()]), &LIMITS, &whole).unwrap();
    let refused = |bytes: Vec<u8>| {
        let error = header(&bytes, &LIMITS).unwrap_err().to_string();
        assert_eq!(decode(&bytes, &LIMITS, &whole).unwrap_err().to_string(), error);
        error
    };
    for (samples, interpretation, stream, words) in [
        (1, 1, &colors, "has 3 samples per pixel instead of 1"),
        (3, 6, &gray, "has 1 samples per pixel instead of 3"),
    ] {
        let error = refused(page(samples, interpretation, vec![stream.clone()]));
        assert!(error.contains(words), "{error}");
    }
    // Streams that are cut off; bytes behind the end are ignored.
    for length in [gray.len() - 1, gray.len() - 9] {
        let error = refused(page(1, 1, vec![gray[..length].to_vec()]));
        assert!(error.contains("a JPEG stream in it has no end"), "{error}");
    }
    decode(&page(1, 1, vec![[&gray[..], &[0; 5]].concat()]), &LIMITS, &whole).unwrap();
    // In a planar page, each stream has one component.
    let planes = |stream: &Vec<u8>| {
        let page = Page::new(size, 8, 3, vec![stream.clone(); 3]).with(COMPRESSION, &[7]);
        file(&[page.with(PHOTOMETRIC, &[2]).with(PLANAR, &[2])])
    };
    decode(&planes(&gray), &LIMITS, &whole).unwrap();
    let error = refused(planes(&colors));
    assert!(error.contains("has 3 samples per pixel instead of 1"), "{error}");
    // Two components by the frame header; what follows it is not checked.
    let mut two = colors;
    let at = two.windows(2).position(|bytes| bytes == [0xff, 0xc0]).unwrap();
    two[at + 9] = 2;
    let alpha = Page::new(size, 8, 2, vec![two]).with(COMPRESSION, &[7]).with(PHOTOMETRIC, &[1]);
    let error = refused(file(&[alpha.with(EXTRA, &[2])]));
    assert!(error.contains("TIFF with JPEG streams of grey and alpha is not supported"), "{error}");
}

#[test]
fn jpeg_streams_have_the_size_of_their_place() {
    let stream =
        |[width, height]: [u32; 2]| jpeg(&picture([width, height], &[0]), width, PixelFormat::GRAY, false);
    let page = |sizes: &[[u32; 2]]| {
        let page = Page::new([32, 40], 8, 1, sizes.iter().map(|size| stream(*size)).collect());
        page.with(COMPRESSION, &[7]).with(PHOTOMETRIC, &[1])
    };
    let strips = |sizes: &[[u32; 2]]| file(&[page(sizes).with(ROWS, &[16])]);
    let tiles = |sizes: &[[u32; 2]]| file(&[page(sizes).with(TILE[0], &[32]).with(TILE[1], &[32])]);
    // The last strip may include the rows below the picture.
    let cut = decode(&strips(&[[32, 16], [32, 16], [32, 8]]), &LIMITS, &whole).unwrap();
    let whole_strips = decode(&strips(&[[32, 16]; 3]), &LIMITS, &whole).unwrap();
    let Samples::U8(samples) = &cut[0].samples else { panic!("16 bits") };
    assert!(samples.iter().zip(picture([32, 40], &[0])).take(512).all(|(a, b)| a.abs_diff(b) < 20));
    assert_eq!(cut[0].samples.len(), whole_strips[0].samples.len());
    decode(&tiles(&[[32, 32]; 2]), &LIMITS, &whole).unwrap();
    let refused = |bytes: Vec<u8>, words: &str| {
        let error = header(&bytes, &LIMITS).unwrap_err().to_string();
        assert_eq!(decode(&bytes, &LIMITS, &whole).unwrap_err().to_string(), error);
        assert!(error.contains(&format!("a JPEG stream in it has {words}")), "{error}");
    };
    refused(strips(&[[32, 16], [24, 16], [32, 8]]), "24 x 16 px instead of 32 x 16");
    refused(strips(&[[40, 16], [32, 16], [32, 8]]), "40 x 16 px instead of 32 x 16");
    refused(strips(&[[32, 16], [32, 15], [32, 8]]), "32 x 15 px instead of 32 x 16");
    refused(strips(&[[32, 16], [32, 16], [32, 7]]), "32 x 7 px instead of 32 x 8");
    refused(strips(&[[32, 16], [32, 16], [32, 17]]), "32 x 17 px instead of 32 x 8");
    // Fewer and longer rows, with the same number of pixels in all.
    refused(strips(&[[16, 32], [32, 16], [32, 8]]), "16 x 32 px instead of 32 x 16");
    refused(tiles(&[[32, 32], [32, 8]]), "32 x 8 px instead of 32 x 32");
    refused(tiles(&[[16, 32], [32, 32]]), "16 x 32 px instead of 32 x 32");
    // Streams are decoded whole, however small the picture is.
    let side = LIMITS.side_max + 8;
    let large = page(&[[side, 16]; 3]).with(TILE[0], &[side]).with(TILE[1], &[16]);
    let error = header(&file(&[large]), &LIMITS).unwrap_err();
    assert!(matches!(error, DecodeError::TooLarge { got: 1008, limit: 1000, .. }), "{error}");
}

#[test]
fn compressions_that_are_not_read_are_named() {
    for (number, words) in [
        (3, "TIFF with CCITT Group 3 compression is not supported; compress it with Deflate"),
        (34925, "TIFF with LZMA compression is not supported; "),
        (50001, "TIFF with WebP compression is not supported; "),
        (34712, "TIFF with JPEG 2000 compression is not supported; "),
        (777, "TIFF with compression method 777 is not supported; "),
    ] {
        let page = Page::new(SIZE, 8, 1, vec![picture(SIZE, &[0])]).with(PHOTOMETRIC, &[1]);
        let error = decode(&file(&[page.with(COMPRESSION, &[number])]), &LIMITS, &whole).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn an_error_of_one_of_several_pages_says_which() {
    let page = || Page::new(SIZE, 8, 1, vec![picture(SIZE, &[0])]).with(PHOTOMETRIC, &[1]);
    let complex = || page().with(SAMPLE_FORMAT, &[5]);
    // A page whose error shows only when its pixels are read.
    let damaged =
        || Page::new(SIZE, 8, 1, vec![vec![0xff; 9]]).with(PHOTOMETRIC, &[1]).with(COMPRESSION, &[8]);
    for (pages, words) in [
        (
            vec![page(), complex(), page()],
            "TIFF with sample format 5 in page 1 (they count from 0) is not supported",
        ),
        (vec![complex(), page()], "TIFF with sample format 5 in page 0 (they count from 0) is not supported"),
        (vec![complex()], "TIFF with sample format 5 is not supported"),
        (vec![page(), page(), damaged()], "the TIFF is corrupt or truncated: page 2 (they count from 0): "),
    ] {
        let error = decode(&file(&pages), &LIMITS, &whole).unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
    let error = decode(&file(&[damaged()]), &LIMITS, &whole).unwrap_err().to_string();
    assert!(!error.contains("page"), "{error}");
}

#[test]
fn a_page_that_cannot_be_decoded_is_an_error_beside_the_others() {
    let page = |size| Page::new(size, 8, 1, vec![picture(size, &[0])]).with(PHOTOMETRIC, &[1]);
    let damaged = page(SIZE).with(COMPRESSION, &[8]);
    let complex = page(SIZE).with(SAMPLE_FORMAT, &[5]);
    // A page that the decoder cannot even inspect.
    let odd = page([9, 5]).with(PLANAR, &[7]);
    let check = |bytes: &[u8], expected: &[Result<[u32; 2], &str>]| {
        let image = open(bytes, &LIMITS).unwrap();
        let frames: Vec<_> = (0..image.frame_count()).map(|index| image.frame(index, &whole)).collect();
        assert_eq!(frames.len(), expected.len());
        for (frame, expected) in frames.iter().zip(expected) {
            match (frame, expected) {
                (Ok(frame), Ok(size)) => {
                    assert_eq!([frame.width, frame.height], *size);
                    assert_eq!(frame.samples, Samples::U8(picture(*size, &[0])));
                }
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
                _ => panic!("{frame:?} instead of {expected:?}"),
            }
        }
        let header = header(bytes, &LIMITS).unwrap();
        assert!(!header.is_single());
    };
    let pages = [complex, page([8, 6]), odd, damaged, page([9, 5])];
    let each = [Err("in page 0 "), Ok([8, 6]), Err("page 2 "), Err("page 3 "), Ok([9, 5])];
    check(&file(&pages), &each);
    // The link to the third page leads beyond the end: one error for all pages that may follow.
    let mut broken = file(&[page([8, 6]), page([9, 5])]);
    let link = broken.len() - 4;
    broken[link..].copy_from_slice(&0x00ff_ffffu32.to_le_bytes());
    check(&broken, &[Ok([8, 6]), Ok([9, 5]), Err("page 2 ")]);
    assert!(header(&file(&pages[1..2]), &LIMITS).unwrap().is_single());
    // Exceeding a limit fails the whole file.
    let large = file(&[page(SIZE), page([LIMITS.side_max + 1, 1])]);
    let error = header(&large, &LIMITS).unwrap_err();
    assert!(matches!(error, DecodeError::TooLarge { got: 1001, .. }), "{error}");
}

#[test]
fn each_page_is_turned_as_it_says() {
    let page = |size, turned| {
        let page = Page::new(size, 8, 1, vec![picture(size, &[0])]).with(PHOTOMETRIC, &[1]);
        page.with(ORIENTATION, &[turned])
    };
    let pages = [page(SIZE, 1), page(SIZE, 6), page([9, 5], 3)];
    let together = frames(&pages);
    let alone: Vec<Frame> = pages.iter().flat_map(|page| frames(std::slice::from_ref(page))).collect();
    assert_eq!(together, alone);
    let sizes: Vec<_> = together.iter().map(|frame| [frame.width, frame.height]).collect();
    assert_eq!(sizes, [SIZE, [SIZE[1], SIZE[0]], [9, 5]]);
}

#[test]
fn tiles_larger_than_any_picture_are_refused_before_they_take_memory() {
    let page = Page::new(SIZE, 8, 3, vec![vec![0; 16]; 9]).with(PHOTOMETRIC, &[2]).with(PLANAR, &[2]);
    let page = page.with(TILE[0], &[16]).with(TILE[1], &[1 << 30]);
    let error = header(&file(&[page]), &LIMITS).unwrap_err().to_string();
    assert!(error.contains("tiles of 16 x 1073741824"), "{error}");
}

#[test]
fn samples_beyond_colours_and_alpha_are_left_out() {
    let interleaved = |samples: u32, extra: &[u32]| {
        let channels: Vec<u32> = (0..samples).collect();
        let page = Page::new(SIZE, 8, samples, vec![picture(SIZE, &channels)]);
        page.with(PHOTOMETRIC, &[2]).with(EXTRA, extra)
    };
    let rgb = (3, picture(SIZE, &[0, 1, 2]));
    let rgba = (4, picture(SIZE, &[0, 1, 2, 3]));
    assert_eq!(u8s(interleaved(4, &[0])), rgb);
    assert_eq!(u8s(interleaved(6, &[0, 2, 0])), rgb);
    assert_eq!(u8s(interleaved(5, &[2, 0])), rgba);
    let planar = |samples: u32, extra: &[u32]| {
        let planes = (0..samples).map(|plane| picture(SIZE, &[plane])).collect();
        let page = Page::new(SIZE, 8, samples, planes).with(PHOTOMETRIC, &[2]).with(PLANAR, &[2]);
        page.with(EXTRA, extra)
    };
    assert_eq!(u8s(planar(4, &[0])), rgb);
    assert_eq!(u8s(planar(5, &[2, 0])), rgba);
}

#[test]
fn samples_that_are_left_out_are_predicted_from_as_well() {
    use std::io::Write;
    let mut differences = Vec::new();
    for row in picture(SIZE, &[0, 1, 2, 3, 4]).chunks(5 * SIZE[0] as usize) {
        differences.extend(&row[..5]);
        differences.extend(row.windows(6).map(|samples| samples[5].wrapping_sub(samples[0])));
    }
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&differences).unwrap();
    let page = Page::new(SIZE, 8, 5, vec![packed.finish().unwrap()]).with(PHOTOMETRIC, &[2]);
    let page = page.with(COMPRESSION, &[8]).with(PREDICTOR, &[2]);
    assert_eq!(u8s(page.clone().with(EXTRA, &[0, 0])), (3, picture(SIZE, &[0, 1, 2])));
    assert_eq!(u8s(page.with(EXTRA, &[2, 0])), (4, picture(SIZE, &[0, 1, 2, 3])));
}

#[test]
fn the_samples_of_a_page_are_channels_where_pages_are() {
    let channels = |page: &Page| {
        let image = open_pages(file(std::slice::from_ref(page)), &LIMITS, Pages::Channels).unwrap();
        let frame = image.frame(0, &whole).unwrap();
        assert_eq!(image.header().channels, frame.channels);
        (0..frame.channels).map(|channel| frame.channel(channel.into()).samples).collect::<Vec<_>>()
    };
    for (count, photometric) in [(2, 1), (3, 1), (3, 2), (4, 2), (5, 1), (5, 2), (13, 1), (255, 1)] {
        let all: Vec<u32> = (0..count).collect();
        let expected: Vec<Samples> =
            all.iter().map(|channel| Samples::U8(picture(SIZE, &[*channel]))).collect();
        let new = |chunks| Page::new(SIZE, 8, count, chunks).with(PHOTOMETRIC, &[photometric]);
        let page = new(vec![picture(SIZE, &all)]);
        let planes = new(planes_in_tiles(SIZE, count, [16, 16])).with(PLANAR, &[2]);
        let tiles = new(in_tiles(SIZE, &all, [16, 16]));
        let zstd = zstd::packed(page.chunks.clone());
        let zstd = Page { chunks: zstd, ..page.clone() }.with(COMPRESSION, &[50_000]);
        let with_alpha = page.clone().with(EXTRA, &[1]);
        let tiled = |page: Page| page.with(TILE[0], &[16]).with(TILE[1], &[16]);
        for page in [page, tiled(planes), tiled(tiles), zstd, with_alpha] {
            assert!(channels(&page) == expected, "{count} samples, {photometric}: {:?}", page.tags);
        }
    }
    let many = Page::new([2, 1], 8, 256, vec![vec![0; 512]]).with(PHOTOMETRIC, &[1]);
    let told = open_pages(file(&[many]), &LIMITS, Pages::Channels).map(|_| ()).unwrap_err().to_string();
    assert!(told.contains("256 samples per pixel is not supported"), "{told}");
}

#[test]
fn luma_and_chroma_in_planes_are_those_side_by_side() {
    let page = |chunks| Page::new(SIZE, 8, 3, chunks).with(PHOTOMETRIC, &[6]).with(SUBSAMPLING, &[1, 1]);
    let side_by_side = u8s(page(vec![picture(SIZE, &[0, 1, 2])]));
    let planes = (0..3).map(|plane| picture(SIZE, &[plane])).collect();
    assert_eq!(u8s(page(planes).with(PLANAR, &[2])), side_by_side);
}

#[test]
fn bits_in_the_other_order_are_read_in_theirs() {
    // 37 pixels in 5 bytes for each row.
    let row = |y: u32| (0..5).map(move |x| sample(x, y, 0).reverse_bits() ^ sample(y, x, 1));
    let plain: Vec<u8> = (0..SIZE[1]).flat_map(row).collect();
    let reversed = |bytes: &[u8]| bytes.iter().map(|byte| byte.reverse_bits()).collect::<Vec<u8>>();
    let page = |chunk| Page::new(SIZE, 1, 1, vec![chunk]).with(PHOTOMETRIC, &[1]);
    let expected = u8s(page(plain.clone()));
    assert!(expected.1.contains(&0) && expected.1.contains(&255));
    assert_eq!(u8s(page(reversed(&plain)).with(FILL_ORDER, &[2])), expected);
    // Packed data are reversed as they are stored, including their lengths.
    let packed: Vec<u8> = plain.chunks(5).flat_map(|row| [&[4][..], row].concat()).collect();
    let packbits = |chunk| page(chunk).with(COMPRESSION, &[32773]);
    assert_eq!(u8s(packbits(packed.clone())), expected);
    assert_eq!(u8s(packbits(reversed(&packed)).with(FILL_ORDER, &[2])), expected);
    // Each page states its own bit order.
    let both = [page(plain.clone()), page(reversed(&plain)).with(FILL_ORDER, &[2])];
    let [first, second] = &frames(&both)[..] else { panic!("two pages") };
    assert_eq!(first, second);
    let unknown = file(&[page(plain).with(FILL_ORDER, &[3])]);
    let error = decode(&unknown, &LIMITS, &whole).unwrap_err();
    assert!(matches!(&error, DecodeError::Unsupported { what, .. } if what == "bits in order 3"), "{error}");
}

#[test]
fn a_reduced_copy_before_the_picture_is_no_page() {
    let gray = |size: [u32; 2]| Page::new(size, 8, 1, vec![picture(size, &[0])]).with(PHOTOMETRIC, &[1]);
    let copy = gray([9, 5]).with(SUBFILE, &[1]);
    let sizes =
        |pages: &[Page]| frames(pages).iter().map(|frame| [frame.width, frame.height]).collect::<Vec<_>>();
    assert_eq!(sizes(&[copy.clone(), gray(SIZE)]), [SIZE]);
    assert_eq!(sizes(&[copy.clone(), gray(SIZE), gray([8, 8])]), [SIZE, [8, 8]]);
    // The page is turned as it states itself, and the contents of the copy do not matter.
    let turned = gray(SIZE).with(ORIENTATION, &[6]);
    let floats = copy.clone().with(339, &[3]);
    assert_eq!(sizes(&[floats, turned]), [[SIZE[1], SIZE[0]]]);
    // The older tag for the same counts as well.
    let old = gray([9, 5]).with(OLD_SUBFILE, &[2]);
    assert_eq!(sizes(&[old.clone(), gray(SIZE), old, gray([8, 8]).with(OLD_SUBFILE, &[3])]), [SIZE, [8, 8]]);
    // If there is nothing else, the copy is the picture.
    assert_eq!(sizes(std::slice::from_ref(&copy)), [[9, 5]]);
    assert_eq!(sizes(&[copy.clone(), copy.with(SUBFILE, &[4])]), [[9, 5]]);
}

#[test]
fn images_that_share_one_directory_are_refused_rather_than_all_but_the_first_left_out() {
    let stack = |described: &str, samples: u32, images: u32| {
        let start = 8 + 2 + 9 * 12 + 4;
        let pixels = start + 6 + described.len() as u32;
        let entries = [
            (256, 3, 1, WIDTH),
            (257, 3, 1, HEIGHT),
            (258, 3, samples, if samples == 1 { 8 } else { start }),
            (262, 3, 1, if samples == 1 { 1 } else { 2 }),
            (270, 2, described.len() as u32, start + 6),
            (273, 4, 1, pixels),
            (277, 3, 1, samples),
            (278, 3, 1, HEIGHT),
            (279, 4, 1, WIDTH * HEIGHT * samples),
        ];
        let samples = vec![7; (images * samples * WIDTH * HEIGHT) as usize];
        let data = [&[8, 0, 8, 0, 8, 0], described.as_bytes(), &samples].concat();
        raw_tiff(&entries, 0, &data)
    };
    let refused = |bytes: &[u8]| {
        let error = header(bytes, &LIMITS).unwrap_err().to_string();
        let words = "TIFF with 3 images behind one directory is not supported; save it";
        assert!(error.contains(words), "{error}");
    };
    let shaped = |sides: &str| format!("{{\"shape\": [{sides}], \"truncated\": true}}\0");
    let image_j = "ImageJ=1.53t\nimages=3\nslices=3\n\0";
    for (described, samples) in [
        (image_j, 1),
        (image_j, 3),
        (&shaped(&format!("3, {HEIGHT}, {WIDTH}")), 1),
        (&shaped(&format!("3, {HEIGHT}, {WIDTH}, 3")), 3),
    ] {
        refused(&stack(described, samples, 3));
        // A single image that was cut out of a stack and kept its description.
        assert_eq!(decode(&stack(described, samples, 1), &LIMITS, &whole).unwrap().len(), 1);
    }
    for described in ["ImageJ=1.53t\nimages=1\n\0", "three images\0"] {
        assert_eq!(decode(&stack(described, 1, 3), &LIMITS, &whole).unwrap().len(), 1);
    }
    // MetaMorph's tag has an entry for each plane.
    let planes = |count: usize, bytes: usize| {
        let page = Page::new(SIZE, 8, 1, vec![picture(SIZE, &[0])]).with(PHOTOMETRIC, &[1]);
        let mut stack = file(&[page.with(33629, &vec![0x10000; count])]);
        stack.resize(stack.len() + bytes, 0);
        stack
    };
    let rest = 2 * (SIZE[0] * SIZE[1]) as usize;
    refused(&planes(3, rest));
    decode(&planes(1, rest), &LIMITS, &whole).unwrap();
}

#[test]
fn the_thumbnail_of_a_raw_photo_is_not_taken_for_it() {
    let page = |size| Page::new(size, 8, 1, vec![picture(size, &[0])]).with(PHOTOMETRIC, &[1]);
    // The position of the SubIFD does not matter: nothing there is read.
    let thumbnail = page([9, 5]).with(SUBFILE, &[1]).with(330, &[8]);
    for pages in [vec![thumbnail.clone()], vec![thumbnail, page(SIZE)]] {
        let error = header(&file(&pages), &LIMITS).unwrap_err().to_string();
        assert!(error.contains("a reduced copy in front and the picture in a SubIFD"), "{error}");
    }
    // Copies in a SubIFD of the picture are ignored.
    assert_eq!(frames(&[page(SIZE).with(330, &[8])]).len(), 1);
}

#[test]
fn a_lookup_table_of_image_j_says_how_values_are_shown_and_any_other_what_the_colours_are() {
    let file = |described: &str| {
        let start = 8 + 2 + 10 * 12 + 4;
        let map = start + described.len() as u32;
        let entries = [
            (256, 3, 1, WIDTH),
            (257, 3, 1, HEIGHT),
            (258, 3, 1, 8),
            (262, 3, 1, 3),
            (270, 2, described.len() as u32, start),
            (273, 4, 1, map + 3 * 256 * 2),
            (277, 3, 1, 1),
            (278, 3, 1, HEIGHT),
            (279, 4, 1, WIDTH * HEIGHT),
            (320, 3, 3 * 256, map),
        ];
        // Green alone.
        let green = (0..256_u16).flat_map(|value| (257 * value).to_le_bytes());
        let map: Vec<u8> = [0; 512].into_iter().chain(green).chain([0; 512]).collect();
        let samples: Vec<u8> = (0..WIDTH * HEIGHT).map(|at| at as u8).collect();
        raw_tiff(&entries, 0, &[described.as_bytes(), &map, &samples].concat())
    };
    let found = |described: &str| {
        let frame = decode(&file(described), &LIMITS, &whole).unwrap().remove(0);
        let Samples::U8(samples) = frame.samples else { panic!("16 bits") };
        (frame.channels, samples[..6].to_vec())
    };
    assert_eq!(found("ImageJ=1.53t\nimages=1\n\0\0"), (1, vec![0, 1, 2, 3, 4, 5]));
    assert_eq!(found("another program's words\0"), (3, vec![0, 0, 0, 0, 1, 0]));
}

#[test]
fn directories_that_overlap_are_not_all_read_again() {
    // Each begins an entry behind the one before. That it has `TAGS` entries is in the value of the entry in front of it.
    const TAGS: u32 = 0x4000;
    const COUNT: u32 = 190;
    const FIRST: u32 = 65544;
    let needed =
        [256, 257, 258, 259, 262, 273, 277, 278, 279].into_iter().zip([16, 16, 8, 1, 1, 8, 1, 16, 256]);
    let needed: Vec<(u16, u32)> = needed.collect();
    let mut bytes = [&b"II*\0"[..], &FIRST.to_le_bytes()].concat();
    bytes.resize(FIRST as usize, 7);
    bytes.extend((TAGS as u16).to_le_bytes());
    for index in 0..TAGS + COUNT {
        let (tag, kind, value) = match (index.checked_sub(TAGS), index.checked_sub(5000)) {
            // The first four bytes are where the next directory is.
            (Some(directory), _) if directory + 1 < COUNT => {
                let at = FIRST + 12 * (directory + 1);
                (at as u16, (at >> 16) as u16, 0)
            }
            (Some(_), _) => (0, 0, 0),
            (None, Some(known)) if (known as usize) < needed.len() => {
                (needed[known as usize].0, 3, needed[known as usize].1)
            }
            (None, _) => (1000 + index as u16, 3, 0),
        };
        bytes.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        bytes.extend([1, value | TAGS << 16].map(u32::to_le_bytes).concat());
    }
    let image = open(&bytes[..], &Limits { frames_max: 200, ..LIMITS }).unwrap();
    let decoded = |index| image.frame(index, &|_, _| None);
    assert!(decoded(0).is_ok() && decoded(20).is_ok());
    let last = image.frame_count() - 1;
    assert!(last < 180, "{last}");
    let error = decoded(last).unwrap_err().to_string();
    assert!(error.contains("its parts are read again and again"), "{error}");
}
