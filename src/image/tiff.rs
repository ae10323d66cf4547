//! TIFF: one or many pages, strips or tiles, 8 and 16 bits (1 to 4 for grey and palettes), measured values, classic and BigTIFF.
//!
//! All directories are walked and checked before any pixel is read. Reduced copies and masks (by the subfile type) are not pages, unless
//! there is nothing else.
//!
//! - `source`: the file as the decoder reads it.
//! - `chunks`: checks strips and tiles before any is read; `streams`: checks those that are JPEG.
//! - `tiles`: tiles that are read one by one.
//! - `samples`: converts the decoder's output to grey or RGB; `measured`: to values, where samples are no parts of white.
//! - `zstd`: strips and tiles that the decoder does not unpack.
//! - `words`: what is wrong with a file, worded for the client that posted it.

mod chunks;
mod measured;
mod samples;
mod source;
mod streams;
mod tiles;
mod words;
mod zstd;

#[cfg(test)]
pub(super) mod tests;

use super::{
    self as image, DecodeError, Format, Frame, Header, Later, Limits, Orientation, stack::planes_of,
};
use chunks::{COMPRESSION_JPEG, Chunks, Found};
use measured::Measured;
use samples::{Kind, Page};
use source::{Changes, ReadBudget, Source};
use tiff::{
    decoder::{Decoder, DecodingSampleType, ifd::Entry},
    tags::Tag,
};
use words::{corrupt, from_tiff, unsupported, unsupported_channels};
use zstd::{COMPRESSION_ZSTD, Packed};

/// How many bytes the values of one tag may take: enough for 262,144 strips or tiles.
const TAG_BYTES_MAX: usize = 8 << 20;

/// More samples per pixel than any supported kind has.
const SAMPLES_MAX: u16 = 8;

/// Bits of the subfile type: a reduced copy, a transparency mask.
const NO_PAGE: u32 = 0b101;
/// The older tag's value for a reduced copy.
const OLD_REDUCED: u32 = 2;

/// The value of the colour interpretation for grey.
const BLACK_IS_ZERO: u32 = 1;

/// The value of the compression tag for LZW.
const COMPRESSION_LZW: u16 = 5;
/// The value of the compression tag for WebP streams.
const COMPRESSION_WEBP: u16 = 50001;

/// The tag of MetaMorph's stacks: an entry for each plane.
const META_MORPH_PLANES: Tag = Tag::Unknown(33629);

/// Every page, in order, or the error of a page that cannot be decoded.
pub(super) struct Pages {
    pages: Vec<Result<Page, DecodeError>>,
    changes: Changes,
    /// What may still be read of the file, for all pages together.
    budget: ReadBudget,
}

/// Opens the first directory. The decoder reads that directory under its own default limit for tags. A false count in it only takes address
/// space: no memory is touched beyond what the file has.
fn open<'a>(source: Source<'a>, bytes: &[u8]) -> Result<Decoder<Source<'a>>, DecodeError> {
    let mut memory = tiff::decoder::Limits::default();
    // Pixels go into memory of our own; the decoder counts only the values of tags against this limit.
    memory.decoding_buffer_size = TAG_BYTES_MAX;
    memory.ifd_value_size = TAG_BYTES_MAX;
    memory.intermediate_buffer_size = bytes.len();
    let decoder = Decoder::new(source).map_err(from_tiff)?;
    Ok(decoder.with_limits(memory))
}

/// Walks the directories. If there are several pages, an error in one concerns that page alone; exceeding a limit fails the whole file.
pub(super) fn walk(bytes: &[u8], limits: &Limits, are: image::Pages) -> Result<Pages, DecodeError> {
    let (unchanged, budget) = (Changes::default(), ReadBudget::of_walk(bytes));
    let mut decoder = open(Source::new(bytes, &unchanged, &budget), bytes)?;
    let mut pages = Vec::new();
    let mut found = Found::default();
    let mut take = |decoder: &mut Decoder<Source<'_>>, index: usize, reached: Result<(), DecodeError>| {
        limits.check_frames(pages.len() + 1)?;
        let page = reached.and_then(|()| page(bytes, decoder, limits, are, &mut found));
        found.check(bytes.len())?;
        let several = index > 0 || decoder.more_images();
        match page.map_err(|error| error.of_page(several, pages.len())) {
            Err(error) if !several || matches!(error, DecodeError::TooLarge { .. }) => return Err(error),
            page => pages.push(page),
        }
        Ok(())
    };
    let (mut any, mut reached) = (false, Ok(()));
    for index in 0.. {
        // Copies and masks are bounded too; there may be several for each page.
        limits.check_frames(index / 8)?;
        match reached.and_then(|()| is_copy(&mut decoder)) {
            Ok(true) if index == 0 => check_picture(&mut decoder)?,
            Ok(true) => {}
            page => {
                take(&mut decoder, index, page.map(|_| ()))?;
                any = true;
            }
        }
        if !decoder.more_images() {
            break;
        }
        // If the chain is broken, there are no more pages; if one page cannot be inspected, the next one still can.
        reached = decoder.next_image().map_err(from_tiff);
    }
    if !any {
        let reached = decoder.seek_to_image(0).map_err(from_tiff);
        take(&mut decoder, 0, reached)?;
    }
    let pages = Pages { pages, changes: found.finish()?, budget: ReadBudget::of(bytes) };
    if let [Ok(page)] = &pages.pages[..] {
        check_alone(bytes, &pages, page)?;
    }
    Ok(pages)
}

/// Raw photos have a thumbnail in front, and the picture itself in a directory below that.
fn check_picture(decoder: &mut Decoder<Source<'_>>) -> Result<(), DecodeError> {
    if decoder.image_ifd().directory().contains(Tag::SubIfd) {
        return Err(DecodeError::unsupported(
            Format::Tiff,
            "a reduced copy in front and the picture in a SubIFD, as raw photos have it,",
            "save the picture as a page, or as JPEG or PNG",
        ));
    }
    Ok(())
}

/// Checks that the only page is the whole file. Some writers put many images behind one directory, and say so in its description or, like
/// MetaMorph, by a tag with an entry for each.
fn check_alone(bytes: &[u8], pages: &Pages, page: &Page) -> Result<(), DecodeError> {
    if bytes.len() as u64 <= 2 * page.raw_bytes() {
        return Ok(());
    }
    let mut decoder = pages.at(bytes, page)?;
    let meta_morph = decoder.image_ifd().directory().get(META_MORPH_PLANES).map(Entry::count);
    let planes =
        planes_of(described(&mut decoder)?.as_bytes(), meta_morph, (page.width, page.height, page.count));
    if planes > 1 && bytes.len() as u64 >= planes.saturating_mul(page.raw_bytes()) {
        return Err(DecodeError::unsupported(
            Format::Tiff,
            format!("{planes} images behind one directory"),
            "save it with a directory for each",
        ));
    }
    Ok(())
}

/// What the current directory says of its picture in words.
fn described(decoder: &mut Decoder<Source<'_>>) -> Result<String, DecodeError> {
    let described = decoder.find_tag(Tag::ImageDescription).map_err(from_tiff)?;
    Ok(described.and_then(|text| text.into_string().ok()).unwrap_or_default())
}

/// Whether the current directory describes a reduced copy or a mask.
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

/// The colour interpretation of samples that are indices into a map of colours.
const PALETTE: u16 = 3;

/// The kind of samples, from their number and bits per pixel; `extra` says what the first non-colour sample is. The colours of a palette
/// are read later.
fn kind(photometric: u16, count: u16, bits: u8, extra: Option<u16>) -> Result<Kind, DecodeError> {
    if count > SAMPLES_MAX {
        return Err(unsupported_channels(format!("{count} samples per pixel")));
    }
    let alpha = matches!(extra, Some(1 | 2));
    match (photometric, count, bits) {
        (0 | 1, 1, 1 | 2 | 4 | 8 | 16) => Ok(Kind::Gray),
        (1, 2, 8 | 16) if alpha => Ok(Kind::GrayAlpha),
        (2, 3, 8 | 16) => Ok(Kind::Rgb),
        // A fourth sample of unstated meaning is taken as alpha, as in other readers.
        (2, 4, 8 | 16) if extra.is_none() => Ok(Kind::Rgba),
        (2, 4.., 8 | 16) if alpha => Ok(Kind::Rgba),
        (2, 4.., 8 | 16) => Ok(Kind::Rgb),
        (PALETTE, 1, 1 | 2 | 4 | 8) => Ok(Kind::Palette(Vec::new())),
        (5, 4, 8 | 16) => Ok(Kind::Cmyk),
        (6, 3, 8) => Ok(Kind::YCbCr),
        (0 | 1, 1, _) | (2, 3 | 4, _) | (PALETTE, 1, _) | (5, 4, _) | (6, 3, _) => {
            Err(unsupported(format!("{bits} bits per sample")))
        }
        _ => {
            let what = format!("{count} samples per pixel under colour interpretation {photometric}");
            Err(if photometric < 2 || count > 4 { unsupported_channels(what) } else { unsupported(what) })
        }
    }
}

/// The colours of a palette for samples of `bits` bits.
fn palette(decoder: &mut Decoder<Source<'_>>, bits: u8) -> Result<Vec<u16>, DecodeError> {
    let map: Vec<u16> = find_all(decoder, Tag::ColorMap)?;
    let (numbers, wanted) = (map.len(), 3 << bits);
    if numbers != wanted {
        return Err(corrupt(format!("its palette has {numbers} numbers instead of {wanted}")));
    }
    Ok(map)
}

/// Reads the current directory as a page.
fn page(
    bytes: &[u8],
    decoder: &mut Decoder<Source<'_>>,
    limits: &Limits,
    are: image::Pages,
    found: &mut Found,
) -> Result<Page, DecodeError> {
    let (width, height) = decoder.dimensions().map_err(from_tiff)?;
    found.page([width, height], limits)?;
    let photometric: u16 = find(decoder, Tag::PhotometricInterpretation)?.unwrap_or(1);
    let bits: u8 = find_all(decoder, Tag::BitsPerSample)?.first().copied().unwrap_or(1);
    let count: u16 = find(decoder, Tag::SamplesPerPixel)?.unwrap_or(1);
    let extra: Option<u16> = find_all(decoder, Tag::ExtraSamples)?.first().copied();
    let format: u16 = find_all(decoder, Tag::SampleFormat)?.first().copied().unwrap_or(1);
    let measured = Measured::of(format, bits)?;
    let has_palette = photometric == PALETTE;
    // ImageJ describes only the first page.
    if has_palette && !found.of_image_j {
        found.of_image_j = described(decoder)?.starts_with("ImageJ=");
    }
    // Its lookup tables say how measured values are shown; the values count.
    let photometric = if has_palette && found.of_image_j { 1 } else { photometric };
    let compression: u16 = find(decoder, Tag::Compression)?.unwrap_or(1);
    let is_plain = matches!(photometric, 1 | 2)
        && (measured.is_some() || matches!(bits, 8 | 16))
        && compression != COMPRESSION_JPEG;
    let mut kind = match (measured, u8::try_from(count)) {
        (_, Ok(count @ 2..)) if is_plain && are == image::Pages::Channels => Kind::Channels(count),
        (Some(measured), _) => measured.kind(photometric, count, compression)?,
        (None, _) => kind(photometric, count, bits, extra)?,
    };
    if let Kind::Palette(map) = &mut kind {
        *map = palette(decoder, bits)?;
    }
    let planar = find::<u16>(decoder, Tag::PlanarConfiguration)? == Some(2) && count > 1;
    let interleaved = if planar { 1 } else { count };
    let tiled = decoder.find_tag(Tag::TileOffsets).map_err(from_tiff)?.is_some();
    let one_by_one = tiled && compression != COMPRESSION_ZSTD && (planar || compression == COMPRESSION_LZW);
    let tiles = if one_by_one { Some(tiles::sides(decoder, limits)?) } else { None };
    let chunks = Chunks { tiled, compression, interleaved, size: [width, height] };
    let packed = match compression {
        COMPRESSION_ZSTD => Some(Packed::of(decoder, chunks, bits, measured, limits)?),
        _ => None,
    };
    let stream_bytes = chunks::check(bytes, decoder, chunks, limits, found)?;
    let directory = decoder.ifd_pointer().ok_or_else(|| corrupt("it has no directory"))?.0;
    let page = Page {
        directory,
        width,
        height,
        kind,
        bits,
        measured,
        count,
        planar,
        premultiplied: extra == Some(1),
        tiles,
        packed,
        stream_bytes,
        orientation: Orientation::new(find::<u64>(decoder, Tag::Orientation)?.unwrap_or(1)),
    };
    let mut replace = |tag, value| {
        let replaced = found.changes.replace(bytes, directory, tag, value);
        replaced.ok_or_else(|| corrupt("its directory cannot be read twice"))
    };
    if has_palette || count > page.kind.samples() || matches!(page.kind, Kind::Channels(_)) {
        replace(Tag::PhotometricInterpretation, BLACK_IS_ZERO)?;
    }
    if page.told() != (width, height) {
        let (width, height) = page.told();
        replace(Tag::ImageWidth, width)?;
        replace(Tag::ImageLength, height)?;
    }
    Ok(page)
}

impl Pages {
    pub(super) fn header(&self) -> Result<Header, DecodeError> {
        let good: Vec<&Page> = self.pages.iter().flatten().collect();
        let Some(first) = good.first() else {
            let bad = self.pages.iter().find_map(|page| page.as_ref().err());
            return Err(bad.cloned().unwrap_or_else(|| corrupt("it has no pages")));
        };
        let seen = |page: &Page| page.orientation.size(page.width, page.height);
        // Each page is turned by itself, which is counted as working memory.
        let (channels, bits) = (first.kind.channels(), first.decoded_bits());
        let mut header = Header::single(Format::Tiff, seen(first), channels, bits, Orientation::UPRIGHT);
        header.work_bytes = first.work_bytes();
        let later = good[1..].iter().map(|page| {
            let ((width, height), bits) = (seen(page), page.decoded_bits());
            Later { width, height, bits, bytes: page.decoded_bytes() + page.work_bytes() }
        });
        header.later = later.collect();
        header.refused = self.pages.len() - good.len();
        Ok(header)
    }

    /// Decodes one of the pages. There must be so many.
    pub(super) fn decode(&self, bytes: &[u8], number: usize) -> Result<Frame, DecodeError> {
        let page = self.pages[number].as_ref().map_err(DecodeError::clone)?;
        let raw = self.at(bytes, page).and_then(|mut decoder| read(&mut decoder, page));
        let several = self.pages.len() > 1;
        let raw = raw.map_err(|error| error.of_page(several, number))?;
        let (size, channels) = ((page.width, page.height), page.kind.channels());
        match page.measured {
            None => Ok(Frame::upright(page.orientation, size, channels, page.convert(raw))),
            Some(measured) => {
                let values = page.values(measured, raw);
                let frame = Frame::measured(Format::Tiff, page.orientation, size, channels, values);
                frame.map_err(|error| error.of_page(several, number))
            }
        }
    }

    /// Opens the file at a page, as if that were the first: pages are decoded in any order, and the way to a late one is long.
    fn at<'a>(&'a self, bytes: &'a [u8], page: &Page) -> Result<Decoder<Source<'a>>, DecodeError> {
        open(Source::new(bytes, &self.changes, &self.budget).beginning_at(page.directory), bytes)
    }
}

/// Reads the current page as it is stored, all planes; measured values as bytes.
fn read(decoder: &mut Decoder<Source<'_>>, page: &Page) -> Result<super::Samples, DecodeError> {
    let layout = decoder.image_buffer_layout().map_err(from_tiff)?;
    let told = page.told();
    let same =
        decoder.dimensions().map_err(from_tiff)? == told && layout.complete_len as u64 == page.bytes_of(told);
    let wide = page.bits == 16 && page.measured.is_none();
    let kind = layout.sample_type;
    let agrees = match page.measured {
        Some(measured) => kind == Some(measured.decoded),
        None => (kind == Some(DecodingSampleType::U16)) == wide,
    };
    if !same || !agrees {
        return Err(corrupt("its headers disagree about its size"));
    }
    let mut into = |samples: &mut [u8]| match (page.packed, page.tiles) {
        (Some(packed), _) => zstd::read(decoder, page, packed, samples),
        (None, Some(tiles)) => tiles::read(decoder, page, tiles, samples),
        (None, None) => decoder.read_image_bytes(samples).map_err(from_tiff),
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
