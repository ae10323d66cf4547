//! TIFF: one or many pages, strips or tiles, 8 and 16 bits (1 to 4 for grey and palettes), classic and BigTIFF.
//!
//! All directories are walked and checked before any pixel is read. Reduced copies and masks (by the subfile type) are no
//! pages, unless there is nothing else.
//!
//! - `source`: the file as the decoder reads it.
//! - `tiles`: tiles that are read one by one.
//! - `samples`: what the decoder gives becomes grey or RGB.
//! - `words`: what is wrong with a file, for whoever posted it.

mod samples;
mod source;
mod tiles;
mod words;

#[cfg(test)]
pub(super) mod tests;

use super::{DecodeError, Format, Frame, Header, Limits, Orientation, jpeg, stack::planes_of};
use samples::{Kind, Page};
use source::{Changes, Source};
use tiff::{
    decoder::{Decoder, DecodingSampleType},
    tags::Tag,
};
use words::{corrupt, from_tiff, of_page, unsupported};

/// What one tag's values may take: enough for 262,144 strips or tiles.
const TAG_BYTES_MAX: usize = 8 << 20;

/// Strips and tiles with the lowest bit first, apart from each other, beyond which no writer goes.
const REVERSED_MAX: usize = 1 << 18;

/// More samples per pixel than any kind that is decoded.
const SAMPLES_MAX: u16 = 8;

/// Bits of the subfile type: a reduced copy, a transparency mask.
const NO_PAGE: u32 = 0b101;
/// What said the first of these before there were bits.
const OLD_REDUCED: u32 = 2;

/// The value of the colour interpretation for grey.
const BLACK_IS_ZERO: u32 = 1;

/// The value of the compression tag for LZW.
const COMPRESSION_LZW: u16 = 5;
/// And for JPEG streams.
const COMPRESSION_JPEG: u16 = 7;
/// And for WebP streams.
const COMPRESSION_WEBP: u16 = 50001;

/// Strips or tiles of all pages. Each has a decompressor of its own, which takes a microsecond however little there is in it: pages that
/// share one list of them would keep a thread for a minute.
const CHUNKS_MAX: usize = 1 << 20;

/// Every page that will be decoded, in order, with its place in the chain of directories.
struct Pages {
    pages: Vec<(usize, Page)>,
    changes: Changes,
}

/// What is gathered on the way.
#[derive(Default)]
struct Found {
    /// Bytes of JPEG streams. Pages that share one would have it read for each of them.
    jpeg_bytes: u64,
    /// Strips or tiles of the pages so far.
    chunks: usize,
    changes: Changes,
}

/// Opens the first directory. That one the decoder reads under its own limit for tags, of which a lie takes only address
/// space: nothing is touched beyond what the file has.
fn open<'a>(source: Source<'a>, bytes: &[u8]) -> Result<Decoder<Source<'a>>, DecodeError> {
    let mut memory = tiff::decoder::Limits::default();
    // Pixels go into memory of ours; what the decoder counts against this are the values of tags.
    memory.decoding_buffer_size = TAG_BYTES_MAX;
    memory.ifd_value_size = TAG_BYTES_MAX;
    memory.intermediate_buffer_size = bytes.len();
    let decoder = Decoder::new(source).map_err(from_tiff)?;
    Ok(decoder.with_limits(memory))
}

/// Walks the directories.
fn walk(bytes: &[u8], limits: &Limits) -> Result<Pages, DecodeError> {
    let mut decoder = open(Source::new(bytes, Changes::default()), bytes)?;
    let (mut pages, mut pixels) = (Vec::new(), 0);
    let mut found = Found::default();
    let mut take = |decoder: &mut Decoder<Source<'_>>, index: usize| {
        limits.check_frames(pages.len() + 1)?;
        let (width, height) = decoder.dimensions().map_err(from_tiff)?;
        limits.check_side(width, height)?;
        pixels += u64::from(width) * u64::from(height);
        limits.check_pixels(pixels)?;
        let several = index > 0 || decoder.more_images();
        let page = page(bytes, decoder, (width, height), limits, &mut found);
        pages.push((index, page.map_err(|error| of_page(several, pages.len(), error))?));
        Ok::<_, DecodeError>(())
    };
    let mut any = false;
    for index in 0.. {
        // Copies and masks are bounded too: a page may have several.
        limits.check_frames(index / 8)?;
        if !is_copy(&mut decoder)? {
            take(&mut decoder, index)?;
            any = true;
        }
        if !decoder.more_images() {
            break;
        }
        decoder.next_image().map_err(from_tiff)?;
    }
    if !any {
        decoder.seek_to_image(0).map_err(from_tiff)?;
        take(&mut decoder, 0)?;
    }
    if let [(index, page)] = &pages[..] {
        check_alone(bytes, &mut decoder, *index, page)?;
    }
    Ok(Pages { pages, changes: found.changes })
}

/// Whether the only page is all that there is: some writers put many images behind one directory, and say so in its description.
fn check_alone(
    bytes: &[u8],
    decoder: &mut Decoder<Source<'_>>,
    index: usize,
    page: &Page,
) -> Result<(), DecodeError> {
    // Planes of colours lie behind each other, too.
    if page.count != 1 || bytes.len() as u64 <= 2 * page.raw_bytes() {
        return Ok(());
    }
    decoder.seek_to_image(index).map_err(from_tiff)?;
    let described = decoder.find_tag(Tag::ImageDescription).map_err(from_tiff)?;
    let described = described.and_then(|text| text.into_string().ok()).unwrap_or_default();
    let planes = planes_of(described.as_bytes(), page.width, page.height);
    if planes > 1 && bytes.len() as u64 >= planes.saturating_mul(page.raw_bytes()) {
        return Err(DecodeError::unsupported(
            Format::Tiff,
            format!("{planes} images behind one directory"),
            "save it with a directory for each",
        ));
    }
    Ok(())
}

/// Whether the current directory is of a reduced copy or a mask.
fn is_copy(decoder: &mut Decoder<Source<'_>>) -> Result<bool, DecodeError> {
    let kind = find::<u32>(decoder, Tag::NewSubfileType)?.unwrap_or(0);
    let old = find::<u32>(decoder, Tag::SubfileType)?;
    Ok(kind & NO_PAGE != 0 || old == Some(OLD_REDUCED))
}

fn find<T: TryFrom<u64>>(decoder: &mut Decoder<Source<'_>>, tag: Tag) -> Result<Option<T>, DecodeError> {
    decoder.find_tag_unsigned(tag).map_err(from_tiff)
}

fn find_all<T: TryFrom<u64>>(decoder: &mut Decoder<Source<'_>>, tag: Tag) -> Result<Vec<T>, DecodeError> {
    let values = decoder.find_tag_unsigned_vec(tag).map_err(from_tiff)?;
    Ok(values.unwrap_or_default())
}

/// What samples are, so many of so many bits for a pixel, of which the first that is no colour says what it is. A palette's colours are
/// still to be read.
fn kind(photometric: u16, count: u16, bits: u8, extra: Option<u16>) -> Result<Kind, DecodeError> {
    if count > SAMPLES_MAX {
        return Err(unsupported(format!("{count} samples per pixel")));
    }
    let alpha = matches!(extra, Some(1 | 2));
    match (photometric, count, bits) {
        (0 | 1, 1, 1 | 2 | 4 | 8 | 16) => Ok(Kind::Gray),
        (1, 2, 8 | 16) if alpha => Ok(Kind::GrayAlpha),
        (2, 3, 8 | 16) => Ok(Kind::Rgb),
        // A fourth sample that says nothing of itself is taken as alpha, as other readers do.
        (2, 4, 8 | 16) if extra.is_none() => Ok(Kind::Rgba),
        (2, 4.., 8 | 16) if alpha => Ok(Kind::Rgba),
        (2, 4.., 8 | 16) => Ok(Kind::Rgb),
        (3, 1, 1 | 2 | 4 | 8) => Ok(Kind::Palette(Vec::new())),
        (5, 4, 8 | 16) => Ok(Kind::Cmyk),
        (6, 3, 8) => Ok(Kind::YCbCr),
        (0 | 1, 1, _) | (2, 3 | 4, _) | (3, 1, _) | (5, 4, _) | (6, 3, _) => {
            Err(unsupported(format!("{bits} bits per sample")))
        }
        _ => Err(unsupported(format!("{count} samples per pixel under colour interpretation {photometric}"))),
    }
}

/// The colours that samples of so many bits stand for.
fn palette(decoder: &mut Decoder<Source<'_>>, bits: u8) -> Result<Vec<u16>, DecodeError> {
    let map: Vec<u16> = find_all(decoder, Tag::ColorMap)?;
    let (numbers, wanted) = (map.len(), 3 << bits);
    if numbers != wanted {
        return Err(corrupt(format!("its palette has {numbers} numbers instead of {wanted}")));
    }
    Ok(map)
}

/// Reads the current directory.
fn page(
    bytes: &[u8],
    decoder: &mut Decoder<Source<'_>>,
    (width, height): (u32, u32),
    limits: &Limits,
    found: &mut Found,
) -> Result<Page, DecodeError> {
    let photometric: u16 = find(decoder, Tag::PhotometricInterpretation)?.unwrap_or(1);
    let bits: u8 = find_all(decoder, Tag::BitsPerSample)?.first().copied().unwrap_or(1);
    let count: u16 = find(decoder, Tag::SamplesPerPixel)?.unwrap_or(1);
    let extra: Option<u16> = find_all(decoder, Tag::ExtraSamples)?.first().copied();
    match find_all::<u16>(decoder, Tag::SampleFormat)?.first() {
        None | Some(1 | 4) => {}
        Some(2) => return Err(unsupported("signed samples")),
        Some(3) => return Err(unsupported("floating-point samples")),
        Some(other) => return Err(unsupported(format!("sample format {other}"))),
    }
    let mut kind = kind(photometric, count, bits, extra)?;
    if let Kind::Palette(map) = &mut kind {
        *map = palette(decoder, bits)?;
    }
    let planar = find::<u16>(decoder, Tag::PlanarConfiguration)? == Some(2) && count > 1;
    let compression: u16 = find(decoder, Tag::Compression)?.unwrap_or(1);
    let interleaved = if planar { 1 } else { count };
    let tiled = decoder.find_tag(Tag::TileOffsets).map_err(from_tiff)?.is_some();
    check_chunks(bytes, decoder, Chunks { tiled, compression, interleaved, height }, limits, found)?;
    let one_by_one = tiled && (planar || compression == COMPRESSION_LZW);
    let page = Page {
        width,
        height,
        kind,
        bits,
        count,
        planar,
        premultiplied: extra == Some(1),
        tiles: if one_by_one { Some(tiles::sides(decoder, limits)?) } else { None },
        orientation: Orientation::new(find::<u64>(decoder, Tag::Orientation)?.unwrap_or(1)),
    };
    let directory = decoder.ifd_pointer().ok_or_else(|| corrupt("it has no directory"))?.0;
    let mut replace = |tag, value| {
        let replaced = found.changes.replace(bytes, directory, tag, value);
        replaced.ok_or_else(|| corrupt("its directory cannot be read twice"))
    };
    if matches!(page.kind, Kind::Palette(_)) || count > page.kind.samples() {
        replace(Tag::PhotometricInterpretation, BLACK_IS_ZERO)?;
    }
    if page.told() != (width, height) {
        let (width, height) = page.told();
        replace(Tag::ImageWidth, width)?;
        replace(Tag::ImageLength, height)?;
    }
    Ok(page)
}

/// What a directory says of its strips or tiles.
#[derive(Clone, Copy)]
struct Chunks {
    tiled: bool,
    compression: u16,
    /// Samples of a pixel in each.
    interleaved: u16,
    /// Rows of the picture.
    height: u32,
}

/// Strips or tiles must lie inside the file; JPEG streams must have the size of the strip or tile that they are for, and as many
/// samples in a pixel, and must not be larger than the file, all of them together. Notes those whose bytes are in the other order.
fn check_chunks(
    bytes: &[u8],
    decoder: &mut Decoder<Source<'_>>,
    chunks: Chunks,
    limits: &Limits,
    found: &mut Found,
) -> Result<(), DecodeError> {
    let Chunks { tiled, compression, interleaved, height } = chunks;
    let (offsets, counts) = if tiled {
        (Tag::TileOffsets, Tag::TileByteCounts)
    } else {
        (Tag::StripOffsets, Tag::StripByteCounts)
    };
    let offsets: Vec<u64> = find_all(decoder, offsets)?;
    let counts: Vec<u64> = find_all(decoder, counts)?;
    found.chunks += offsets.len();
    if found.chunks > CHUNKS_MAX {
        return Err(corrupt(format!("more than {CHUNKS_MAX} strips or tiles in all of its pages")));
    }
    let jpeg = compression == COMPRESSION_JPEG;
    let reversed = match find::<u16>(decoder, Tag::FillOrder)?.unwrap_or(1) {
        // Streams that have an order of their own.
        _ if jpeg || compression == COMPRESSION_WEBP => false,
        1 => false,
        2 => true,
        other => return Err(unsupported(format!("bits in order {other}"))),
    };
    let (width, rows) = decoder.chunk_dimensions();
    let down = height.div_ceil(rows.max(1)).max(1);
    for ((&offset, &count), index) in offsets.iter().zip(&counts).zip(0u32..) {
        let chunk = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(count).ok())
            .and_then(|(offset, count)| bytes.get(offset..offset.checked_add(count)?))
            .ok_or_else(|| corrupt("pixel data lies beyond its end"))?;
        if reversed {
            found.changes.reverse([offset, offset + count]);
            if found.changes.reversed.len() > REVERSED_MAX {
                return Err(corrupt(format!("more than {REVERSED_MAX} strips with the lowest bit first")));
            }
        }
        if !jpeg {
            continue;
        }
        // These streams are read whole and by their own word on their size.
        found.jpeg_bytes += count;
        if found.jpeg_bytes > bytes.len() as u64 {
            return Err(corrupt("its JPEG streams overlap"));
        }
        let markers = jpeg::markers(chunk)?;
        // The decoder would take the pixels of one row for those of others. The last strip may be cut, or whole.
        let left = if tiled { rows } else { height - index % down * rows };
        let needed = rows.min(left);
        if markers.width != width || !(needed..=rows).contains(&markers.height) {
            return Err(corrupt(format!(
                "a JPEG stream in it has {} x {} px instead of {width} x {needed}",
                markers.width, markers.height
            )));
        }
        // Tiles may be larger than the picture, and these are decoded whole.
        limits.check_side(markers.width, markers.height)?;
        limits.check_pixels(u64::from(markers.width) * u64::from(markers.height))?;
        // The decoder would take the samples of one pixel for those of others.
        let components = u16::from(markers.components);
        if components != interleaved {
            return Err(corrupt(format!(
                "a JPEG stream in it has {components} samples per pixel instead of {interleaved}"
            )));
        }
        // Of these it gives the first component only.
        if components == 2 {
            return Err(unsupported("JPEG streams of grey and alpha"));
        }
    }
    Ok(())
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    let Pages { pages, .. } = walk(bytes, limits)?;
    let (_, first) = &pages[0];
    let seen = |page: &Page| page.orientation.size(page.width, page.height);
    // Each page is turned by itself, which is counted as work.
    let (channels, bits) = (first.kind.channels(), first.decoded_bits());
    let mut header = Header::single(Format::Tiff, seen(first), channels, bits, Orientation::UPRIGHT);
    let later = pages[1..].iter().map(|(_, page)| (seen(page), page.decoded_bits()));
    header.later = later.map(|((width, height), bits)| (width, height, bits)).collect();
    header.frame_bytes = pages.iter().map(|(_, page)| page.decoded_bytes()).sum();
    let work = |(_, page): &(usize, Page)| {
        let turned = if page.orientation == Orientation::UPRIGHT { 0 } else { page.decoded_bytes() };
        turned.max(page.raw_bytes() + page.tile_bytes())
    };
    header.work_bytes = pages.iter().map(work).max().unwrap_or(0);
    Ok(header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Vec<Frame>, DecodeError> {
    let Pages { pages, changes } = walk(bytes, limits)?;
    let mut decoder = open(Source::new(bytes, changes), bytes)?;
    let mut frames = Vec::with_capacity(pages.len());
    let mut at = 0;
    let several = pages.len() > 1;
    for (index, page) in pages {
        while at < index {
            decoder.next_image().map_err(from_tiff)?;
            at += 1;
        }
        let raw = read(&mut decoder, &page).map_err(|error| of_page(several, frames.len(), error))?;
        let samples = page.convert(raw);
        let size = (page.width, page.height);
        frames.push(Frame::upright(page.orientation, size, page.kind.channels(), samples));
    }
    Ok(frames)
}

/// Reads the current page as the file has it, all planes.
fn read(decoder: &mut Decoder<Source<'_>>, page: &Page) -> Result<super::Samples, DecodeError> {
    let layout = decoder.image_buffer_layout().map_err(from_tiff)?;
    let told = page.told();
    let same =
        decoder.dimensions().map_err(from_tiff)? == told && layout.complete_len as u64 == page.bytes_of(told);
    let wide = page.bits == 16;
    let kind = layout.sample_type;
    if !same || (kind == Some(DecodingSampleType::U16)) != wide {
        return Err(corrupt("its headers disagree about its size"));
    }
    let mut into = |samples: &mut [u8]| match page.tiles {
        Some(tiles) => tiles::read(decoder, page, tiles, samples),
        None => decoder.read_image_bytes(samples).map_err(from_tiff),
    };
    if wide {
        let mut samples = vec![0u16; page.raw_bytes() as usize / 2];
        into(bytemuck::cast_slice_mut(&mut samples))?;
        Ok(super::Samples::U16(samples))
    } else {
        let mut samples = vec![0u8; page.raw_bytes() as usize];
        into(&mut samples)?;
        Ok(super::Samples::U8(samples))
    }
}
