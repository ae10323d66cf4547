//! Files whose pages are the channels of one image, which are decoded one after another; of an only page, the samples of each pixel are.

use super::{SCRATCH, Staged, about, enough};
use crate::{
    engine::Tensor,
    error::InferError,
    image::{Header, Image, Layout},
    models::{Form, ImageInput},
};
use bytes::Bytes;

fn bad(what: String) -> InferError {
    InferError::BadRequest(what)
}

/// Whether the samples of each pixel are the channels.
fn is_one_page(header: &Header) -> bool {
    header.is_single() && header.channels > 1
}

/// Checks that there is a page for each channel, or a sample of the only page.
///
/// # Errors
/// 400 with both numbers.
pub(super) fn check_count(image: &Image<Bytes>, channels: usize) -> Result<(), InferError> {
    let (what, count) = match is_one_page(image.header()) {
        true => ("samples for each pixel of its only page", usize::from(image.header().channels)),
        false => ("pages", image.frame_count()),
    };
    match count {
        count if count == channels => Ok(()),
        count => Err(bad(format!(
            "the number of {what} is {count}, but the model takes {channels}: each is a channel (of an array, the first of the axes c, h, w)"
        ))),
    }
}

/// Bytes of a channel by itself, as it was decoded and as it is staged, where the channels of each pixel lie side by side; `staged` are
/// those of all.
pub(super) fn work_bytes(header: &Header, input: &ImageInput, staged: usize) -> u64 {
    let decoded = match is_one_page(header) {
        true => u64::from(header.width) * u64::from(header.height) * u64::from(header.bits / 8),
        false => 0,
    };
    match (input.preprocess.layout, &input.planes) {
        (Layout::Nhwc, Some(planes)) => decoded + (staged / planes.len()) as u64,
        _ => decoded,
    }
}

/// Decodes the pages, and stages them as one image. `planes` are mean and standard deviation of each.
///
/// # Errors
/// That of a page; 400 for pages of several sizes, and of more than one channel.
pub(super) fn stage(
    image: &Image<Bytes>,
    input: &ImageInput,
    planes: &[[f32; 2]],
) -> Result<Staged, InferError> {
    let mut staged: Option<(Vec<u8>, (u32, u32))> = None;
    let mut placement = None;
    let mut plane = Vec::new();
    let only = is_one_page(image.header()).then(|| image.frame(0, &enough(input))).transpose()?;
    for (index, numbers) in planes.iter().enumerate() {
        let frame = match &only {
            Some(frame) => frame.channel(index),
            None => image.frame(index, &enough(input))?,
        };
        if frame.channels != 1 {
            return Err(bad(format!(
                "page {index} (they count from 0) has {} samples for each pixel, but as a channel of an image it has one",
                frame.channels
            )));
        }
        let (width, height) = frame.source;
        let preprocess = input.preprocess_for(width, height);
        let of_plane = preprocess.out_bytes();
        let (out, first) = staged.get_or_insert_with(|| (vec![0; of_plane * planes.len()], frame.source));
        if frame.source != *first {
            return Err(bad(format!(
                "page {index} (they count from 0) is {width} × {height} pixels, and page 0 is {} × {}: the channels of an image have one size",
                first.0, first.1
            )));
        }
        let preprocess = preprocess.of_channel(*numbers);
        let write = |out: &mut [u8]| {
            SCRATCH
                .with_borrow_mut(|scratch| preprocess.apply(&frame, scratch, out))
                .map_err(|error| about(&format!("page {index} (they count from 0)"), error))
        };
        placement = Some(match preprocess.layout {
            Layout::Nchw => write(&mut out[index * of_plane..][..of_plane])?,
            Layout::Nhwc => {
                plane.resize(of_plane, 0);
                let placement = write(&mut plane)?;
                let size = preprocess.datatype.size();
                let pixels = out.chunks_exact_mut(size * planes.len());
                for (pixel, value) in pixels.zip(plane.chunks_exact(size)) {
                    pixel[index * size..][..size].copy_from_slice(value);
                }
                placement
            }
        });
    }
    let none = || InferError::Internal("an image of no channels was staged".into());
    let ((data, source), placement) = staged.zip(placement).ok_or_else(none)?;
    let Form { datatype, shape, .. } = input.form(1, source.0, source.1);
    let inputs = input.inputs(Tensor { datatype, shape, data: data.into() }, source);
    Ok(Staged { inputs, placement })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::{
        super::{DecodePool, Opened, tests::READ},
        *,
    };
    use crate::{
        engine::DataType,
        image::{Limits, corpus},
        models::{
            Model,
            testing::{model_of, source},
        },
        tasks::testing::{signature, spec},
    };
    use std::sync::Arc;

    const LIMITS: Limits = Limits { side_max: 64, pixels_max: 4096, frames_max: 9 };

    fn model(keys: &str, datatype: DataType, shape: &[i64]) -> Arc<Model> {
        let text = format!("task = \"tensors\"\n[input]\npages = \"channels\"\n{keys}");
        let mut signature = signature(&[("out", &[-1, 10])]);
        signature.inputs = vec![spec("x", datatype, shape)];
        Arc::new(model_of(&source("m", "1", &text), signature).unwrap())
    }

    /// An array of this type and shape.
    fn npy(descr: &str, shape: &[usize], data: &[u8]) -> Bytes {
        let shape: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
        corpus::npy(descr, &format!("({shape})"), data).into()
    }

    async fn staged(model: &Arc<Model>, file: Bytes, bytes_max: u64) -> Result<Tensor, InferError> {
        let pool = DecodePool::new(1, bytes_max, LIMITS).unwrap();
        match pool.stage_only(READ, file, Arc::clone(model), None).await? {
            Opened::Only(decoded) => Ok(decoded.staged.inputs[0].clone()),
            Opened::Several(_) => panic!("pages that are channels are one image"),
        }
    }

    #[tokio::test]
    async fn pages_are_the_channels_of_one_image_in_either_layout() {
        let values: Vec<f32> = (0..5 * 6).map(|value| value as f32 * 1.5 - 7.0).collect();
        let file = npy("<f4", &[5, 2, 3], bytemuck::cast_slice(&values));
        let keys = "resize = \"none\"\nscale = 1\nmean = [1, 2, 3, 4, 5]\nstd = [1, 2, 1, 2, 1]";
        let number = |channel: usize, pixel: usize| {
            (values[6 * channel + pixel] - (channel + 1) as f32) / [1.0, 2.0][channel % 2]
        };
        let first =
            staged(&model(keys, DataType::Fp32, &[-1, 5, -1, -1]), file.clone(), 1 << 20).await.unwrap();
        assert_eq!(first.shape, [1, 5, 2, 3]);
        let expected: Vec<f32> = (0..30).map(|at| number(at / 6, at % 6)).collect();
        assert_eq!(first.to_f32().unwrap(), expected);
        let last = staged(&model(keys, DataType::Fp32, &[-1, -1, -1, 5]), file, 1 << 20).await.unwrap();
        assert_eq!(last.shape, [1, 2, 3, 5]);
        let expected: Vec<f32> = (0..30).map(|at| number(at % 5, at / 5)).collect();
        assert_eq!(last.to_f32().unwrap(), expected);
        let bytes: Vec<u8> = (0..30).collect();
        let low = model("resize = \"none\"\nlayout = \"nchw\"", DataType::Uint8, &[-1, 5, 2, 3]);
        let low = staged(&low, npy("|u1", &[5, 2, 3], &bytes), 1 << 20).await.unwrap();
        assert_eq!((low.datatype, &low.data[..]), (DataType::Uint8, &bytes[..]));
    }

    #[tokio::test]
    async fn pages_that_are_no_channels_of_one_image_are_refused() {
        let two = model("resize = \"none\"", DataType::Fp32, &[-1, 2, -1, -1]);
        let told = async |file| staged(&two, file, 1 << 20).await.unwrap_err().to_string();
        let three = told(npy("|u1", &[3, 2, 2], &[0; 12])).await;
        assert!(three.starts_with("the number of pages is 3, but the model takes 2"), "{three}");
        let one = told(npy("|u1", &[2, 2], &[0; 4])).await;
        assert!(one.starts_with("the number of pages is 1, but the model takes 2"), "{one}");
        let axes = told(npy("|u1", &[1, 2, 2, 2], &[0; 8])).await;
        assert!(
            axes.contains("the shape [1, 2, 2, 2] is not supported; give it the axes (c, h, w) and"),
            "{axes}"
        );
        // Gray, gray and in colour, and of two sizes.
        let page = |size: [u16; 2], samples: u16| (size, samples);
        let sizes = told(tiff(&[page([3, 2], 1), page([2, 3], 1)])).await;
        assert!(
            sizes
                .starts_with("page 1 (they count from 0) is 2 × 3 pixels, and page 0 is 3 × 2: the channels"),
            "{sizes}"
        );
        let colour = told(tiff(&[page([3, 2], 1), page([3, 2], 3)])).await;
        assert!(colour.starts_with("page 1 (they count from 0) has 3 samples for each pixel"), "{colour}");
        assert!(staged(&two, tiff(&[page([3, 2], 1), page([3, 2], 1)]), 1 << 20).await.is_ok());
        let half = model("resize = \"none\"", DataType::Fp16, &[-1, 2, -1, -1]);
        let values = [[1, 2], [3, 70_000]].concat();
        let file = npy("<i4", &[2, 1, 2], bytemuck::cast_slice::<i32, u8>(&values));
        let beyond = staged(&half, file, 1 << 20).await.unwrap_err().to_string();
        assert!(beyond.starts_with("page 1 (they count from 0): a value, less mean"), "{beyond}");
    }

    /// Black pages of these sizes and samples for each pixel.
    fn tiff(pages: &[([u16; 2], u16)]) -> Bytes {
        let mut file = std::io::Cursor::new(Vec::new());
        let mut encoder = tiff::encoder::TiffEncoder::new(&mut file).unwrap();
        for ([width, height], samples) in pages {
            let (width, height, black) = (u32::from(*width), u32::from(*height), vec![0; 3 * 6]);
            match samples {
                1 => encoder.write_image::<tiff::encoder::colortype::Gray8>(width, height, &black[..6]),
                _ => encoder.write_image::<tiff::encoder::colortype::RGB8>(width, height, &black),
            }
            .unwrap();
        }
        file.into_inner().into()
    }

    #[tokio::test]
    async fn the_samples_of_an_only_page_are_channels() {
        let keys = "resize = \"none\"\nscale = 1\nmean = [1, 2, 3]";
        let pixels: Vec<u8> = (0..3 * 64).collect();
        let mut file = std::io::Cursor::new(Vec::new());
        let mut encoder = tiff::encoder::TiffEncoder::new(&mut file).unwrap();
        encoder.write_image::<tiff::encoder::colortype::RGB8>(8, 8, &pixels).unwrap();
        let file = Bytes::from(file.into_inner());
        // The page as it is stored and as it is read, a channel of it, and the whole input; channels that lie side by side also one by one.
        for (shape, needed) in
            [([-1, 3, -1, -1], 2 * 192 + 64 + 768), ([-1, -1, -1, 3], 2 * 192 + 64 + 768 + 256)]
        {
            let model = model(keys, DataType::Fp32, &shape);
            let all = staged(&model, file.clone(), needed).await.unwrap();
            let pixel_of = |at: usize| if shape[1] == 3 { (at % 64, at / 64) } else { (at / 3, at % 3) };
            let expected: Vec<f32> = (0..192)
                .map(pixel_of)
                .map(|(pixel, channel)| f32::from(pixels[3 * pixel + channel]) - (channel + 1) as f32)
                .collect();
            assert_eq!(all.to_f32().unwrap(), expected);
            let refused = staged(&model, file.clone(), needed - 1).await.unwrap_err();
            assert!(matches!(refused, InferError::TooLarge { got, .. } if got == needed), "{refused}");
        }
        let other =
            staged(&model("resize = \"none\"", DataType::Fp32, &[-1, 5, -1, -1]), file, 1 << 20).await;
        let told = other.unwrap_err().to_string();
        let expected = "the number of samples for each pixel of its only page is 3, but the model takes 5";
        assert!(told.starts_with(expected), "{told}");
    }

    #[tokio::test]
    async fn channels_take_the_memory_of_a_page_and_of_the_whole_input() {
        let model = model("resize = \"none\"", DataType::Fp32, &[-1, 5, -1, -1]);
        let file = npy("|u1", &[5, 8, 8], &[9; 5 * 64]);
        let needed = 64 + 4 * 5 * 64;
        assert!(staged(&model, file.clone(), needed).await.is_ok());
        let refused = staged(&model, file, needed - 1).await.unwrap_err();
        assert!(matches!(refused, InferError::TooLarge { got, .. } if got == needed), "{refused}");
    }
}
