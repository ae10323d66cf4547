//! Answers as TIFF files: uncompressed, one page each, or the pages of several files as one.

use std::io::{Cursor, Seek, Write};
use tiff::{
    ColorType, TiffResult, TiffUnsupportedError,
    decoder::{Decoder, DecodingResult, Limits},
    encoder::{TiffEncoder, colortype},
    tags::{ExtraSamples, Tag},
};

/// The samples of a page, row by row, with the channels of a pixel interleaved.
#[derive(Debug, Clone, Copy)]
pub(super) enum Samples<'a> {
    /// Of one channel.
    Bytes(&'a [u8]),
    /// Of one channel.
    Words(&'a [u16]),
    /// Of one, three or four channels; the fourth is alpha.
    Floats(&'a [f32]),
}

impl Samples<'_> {
    fn bytes(self) -> usize {
        match self {
            Samples::Bytes(samples) => size_of_val(samples),
            Samples::Words(samples) => size_of_val(samples),
            Samples::Floats(samples) => size_of_val(samples),
        }
    }
}

/// A TIFF of one page of `channels` samples for each of `width` x `height` pixels.
///
/// # Errors
/// If the encoder refuses the size: 4 GiB and more.
pub(super) fn page([width, height]: [u32; 2], channels: u8, samples: Samples<'_>) -> Result<Vec<u8>, String> {
    let mut bytes = Cursor::new(Vec::with_capacity(samples.bytes() + DIRECTORY_BYTES));
    TiffEncoder::new(&mut bytes)
        .and_then(|mut file| write(&mut file, [width, height], channels.into(), samples))
        .map_err(|error| format!("cannot write {width} x {height} pixels as TIFF: {error}"))?;
    Ok(bytes.into_inner())
}

/// More than a file of one page has beside its samples.
const DIRECTORY_BYTES: usize = 512;

/// Files of one [`page`] each, to become one file.
pub struct Sheets {
    pages: Vec<(Decoder<Cursor<Vec<u8>>>, ColorType)>,
    /// Whether one has samples of 16 bits.
    are_wide: bool,
    bytes: u64,
    largest: u64,
}

impl Sheets {
    /// Reads what the files hold, but for their samples.
    ///
    /// # Errors
    /// For what is no TIFF, which a page always is.
    pub fn of(files: Vec<Vec<u8>>) -> Result<Sheets, String> {
        let lens: Vec<_> = files.iter().map(|file| file.len() as u64).collect();
        let open = |file| {
            let mut page = Decoder::new(Cursor::new(file))?.with_limits(Limits::unlimited());
            let kind = page.colortype()?;
            Ok((page, kind))
        };
        let pages = files.into_iter().map(open).collect::<TiffResult<Vec<_>>>();
        let pages = pages.map_err(|error| format!("cannot read a page as TIFF: {error}"))?;
        let are_wide = pages.iter().any(|(_, kind)| *kind == ColorType::Gray(16));
        let becomes = |((_, kind), len): (&(_, ColorType), &u64)| match kind {
            ColorType::Gray(8) if are_wide => 2 * len,
            _ => *len,
        };
        let lens: Vec<_> = pages.iter().zip(&lens).map(becomes).collect();
        let (bytes, largest) = (lens.iter().sum(), lens.into_iter().max().unwrap_or(0));
        Ok(Sheets { pages, are_wide, bytes, largest })
    }

    /// The most bytes that the file has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most memory that joining takes beside the pages: the file, and one page as samples, in its width and as wide as they become.
    pub fn memory(&self) -> u64 {
        self.bytes + 2 * self.largest
    }

    /// One file with the pages in their order, which need not have the same size. If one has samples of 16 bits, those of 8 become 16, since
    /// programs show pages of one kind as one stack.
    ///
    /// # Errors
    /// If the encoder refuses the size: 4 GiB and more.
    pub fn joined(self) -> Result<Vec<u8>, String> {
        let (mut bytes, pages) = (Cursor::new(Vec::with_capacity(self.bytes as usize)), self.pages.len());
        self.append_all(&mut bytes)
            .map_err(|error| format!("cannot write {pages} pages as TIFF: {error}"))?;
        Ok(bytes.into_inner())
    }

    fn append_all(self, bytes: &mut Cursor<Vec<u8>>) -> TiffResult<()> {
        let mut file = TiffEncoder::new(bytes)?;
        for (mut page, kind) in self.pages {
            let (width, height) = page.dimensions()?;
            let mut append = |samples| write(&mut file, [width, height], kind.num_samples(), samples);
            match page.read_image()? {
                DecodingResult::U8(samples) if self.are_wide => {
                    append(Samples::Words(&samples.into_iter().map(u16::from).collect::<Vec<_>>()))
                }
                DecodingResult::U8(samples) => append(Samples::Bytes(&samples)),
                DecodingResult::U16(samples) => append(Samples::Words(&samples)),
                DecodingResult::F32(samples) => append(Samples::Floats(&samples)),
                _ => Err(TiffUnsupportedError::UnsupportedColorType(kind).into()),
            }?;
        }
        Ok(())
    }
}

fn write(
    file: &mut TiffEncoder<impl Write + Seek>,
    [width, height]: [u32; 2],
    channels: u16,
    samples: Samples<'_>,
) -> TiffResult<()> {
    match (samples, channels) {
        (Samples::Bytes(samples), _) => file.write_image::<colortype::Gray8>(width, height, samples),
        (Samples::Words(samples), _) => file.write_image::<colortype::Gray16>(width, height, samples),
        (Samples::Floats(samples), 1) => file.write_image::<colortype::Gray32Float>(width, height, samples),
        (Samples::Floats(samples), 3) => file.write_image::<colortype::RGB32Float>(width, height, samples),
        (Samples::Floats(samples), _) => {
            let mut page = file.new_image::<colortype::RGBA32Float>(width, height)?;
            // The encoder does not say by itself what a fourth channel is.
            page.encoder().write_tag(Tag::ExtraSamples, &[ExtraSamples::UnassociatedAlpha.to_u16()][..])?;
            page.write_data(samples)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file, whose size was told in advance.
    fn joined(files: Vec<Vec<u8>>) -> Vec<u8> {
        let sheets = Sheets::of(files).unwrap();
        let told = sheets.bytes();
        let file = sheets.joined().unwrap();
        // Each page has said where the file's first one is, in 8 bytes.
        assert!((told - 512..=told).contains(&(file.len() as u64)), "{} bytes instead of {told}", file.len());
        assert!(file.capacity() as u64 <= told);
        file
    }

    #[test]
    fn bytes_become_words_beside_words() {
        let files =
            [Samples::Bytes(&[0, 255]), Samples::Words(&[1, 256])].map(|samples| page([2, 1], 1, samples));
        let mut read = Decoder::new(Cursor::new(joined(files.map(Result::unwrap).into()))).unwrap();
        for expected in [[0, 255], [1, 256]] {
            let DecodingResult::U16(samples) = read.read_image().unwrap() else { panic!("expected words") };
            assert_eq!(samples, expected);
            read.next_image().ok();
        }
    }

    #[test]
    fn joined_pages_are_those_of_the_files_whatever_their_kinds() {
        let floats: Vec<f32> = (0..24_u8).map(|n| f32::from(n) * 1.25 - 7.0).collect();
        let pages: &[([u32; 2], u8, Samples<'_>, ColorType)] = &[
            ([2, 3], 4, Samples::Floats(&floats), ColorType::RGBA(32)),
            ([1, 2], 1, Samples::Words(&[7, 65_535]), ColorType::Gray(16)),
            ([4, 2], 3, Samples::Floats(&floats), ColorType::RGB(32)),
            ([24, 1], 1, Samples::Floats(&floats), ColorType::Gray(32)),
        ];
        let files: Vec<_> = pages
            .iter()
            .map(|(size, channels, samples, _)| page(*size, *channels, *samples).unwrap())
            .collect();
        let mut read = Decoder::new(Cursor::new(joined(files))).unwrap();
        for (at, ([width, height], channels, samples, kind)) in pages.iter().enumerate() {
            assert_eq!(read.dimensions().unwrap(), (*width, *height));
            assert_eq!(read.colortype().unwrap(), *kind);
            let extra = read.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples).unwrap();
            assert_eq!(extra, (*channels == 4).then(|| vec![ExtraSamples::UnassociatedAlpha.to_u16()]));
            match (samples, read.read_image().unwrap()) {
                (Samples::Words(samples), DecodingResult::U16(read)) => assert_eq!(*samples, read),
                (Samples::Floats(samples), DecodingResult::F32(read)) => assert_eq!(*samples, read),
                (samples, read) => panic!("{samples:?} became {read:?}"),
            }
            assert_eq!(read.more_images(), at + 1 < pages.len());
            if read.more_images() {
                read.next_image().unwrap();
            }
        }
    }
}
