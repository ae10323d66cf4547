//! What a model has at the ends of its network: pixels before it become numbers, and an output behind it may be reduced to what is
//! answered of it ([`reduction`](super::reduction)). An engine is told once, when it is loaded.
//!
//! Images are staged as pixels of 8 or 16 bits, rows by columns by channels (grey, or red, green, blue); the engine normalises.
//! So what lies in queues and crosses to a device is a quarter or half of what the network reads. Tensors of the network's own
//! type come as they are: a batch is of one form, since its jobs are of one type and shape.

use super::{DataType, EngineError, Reduction, Tensor, TensorView, staging::Blocks};
use crate::image::{self, Filter, Pixels, Preprocess, Resize};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What is done before and behind a network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// How pixels become the first input's numbers; `None` for a model that takes no images, or takes their pixels as they are.
    pub pixels: Option<PixelInput>,
    /// What may be made of the outputs, for requests that want only what the task answers; `None` where there is nothing to save.
    pub reduction: Option<Reduction>,
}

/// How pixels become numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PixelInput {
    /// Its size is that of the pixels that come.
    to: Preprocess,
    batch_axis: bool,
    channel_axis: bool,
}

/// Pixels as a network is to read them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reading {
    /// What makes an item of numbers.
    pub(super) to: Preprocess,
    /// How many there are.
    pub(super) items: usize,
    /// Of the network's tensor.
    pub(super) shape: Vec<usize>,
    /// 16 bits.
    pub(super) wide: bool,
}

impl PixelInput {
    /// The types that pixels have.
    pub const DATATYPES: [DataType; 2] = [DataType::Uint8, DataType::Uint16];

    /// For images that `preprocess` makes as large as the input: whether that has a batch axis, and one for channels. `None`
    /// where the network reads bytes, which images become at once.
    pub fn new(preprocess: &Preprocess, batch_axis: bool, channel_axis: bool) -> Option<PixelInput> {
        let to = Preprocess { resize: Resize::Exact, filter: Filter::Nearest, ..preprocess.clone() };
        (to.datatype != image::DataType::Uint8).then_some(PixelInput { to, batch_axis, channel_axis })
    }

    /// The shape of the pixels of one image.
    pub fn shape(&self, width: u32, height: u32) -> Vec<usize> {
        let [height, width, depth] = Preprocess { width, height, ..self.to.clone() }.pixels_shape();
        let batch = self.batch_axis.then_some(1);
        batch.into_iter().chain([height, width, depth]).collect()
    }

    /// How a tensor is read; `None` if it is not of pixels.
    ///
    /// # Errors
    /// A shape that pixels do not have.
    pub(super) fn reading(
        &self,
        datatype: DataType,
        shape: &[usize],
    ) -> Option<Result<Reading, EngineError>> {
        Self::DATATYPES.contains(&datatype).then(|| {
            let bad = || EngineError::Input(format!("pixels of shape {shape:?}, which no image has"));
            let (items, extents) = match (self.batch_axis, shape) {
                (true, [items, extents @ ..]) => (*items, extents),
                (_, extents) => (1, extents),
            };
            let &[height, width, depth] = extents else { return Err(bad()) };
            let [Ok(width), Ok(height)] = [width, height].map(u32::try_from) else { return Err(bad()) };
            let to = Preprocess { width, height, ..self.to.clone() };
            if depth != to.color.channels() {
                return Err(bad());
            }
            let extents = to.shape();
            let extents = if self.channel_axis { &extents[..] } else { &extents[1..] };
            let batch = self.batch_axis.then_some(items);
            let shape = batch.into_iter().chain(extents.iter().copied()).collect();
            Ok(Reading { to, items, shape, wide: datatype == DataType::Uint16 })
        })
    }

    /// The network's tensor of a tensor of pixels, in a block of these; `None` if it is not one.
    ///
    /// # Errors
    /// As [`PixelInput::reading`].
    pub(super) fn normalize(
        &self,
        view: &TensorView<'_>,
        blocks: &Blocks,
    ) -> Option<Result<Tensor, EngineError>> {
        let reading = self.reading(view.datatype, &view.shape)?;
        Some(reading.map(|Reading { to, items, shape, wide }| {
            let mut data = blocks.lend(items * to.out_bytes());
            if wide {
                to.normalize(Pixels::U16(&samples(view.data)), items, &mut data);
            } else {
                to.normalize(Pixels::U8(view.data), items, &mut data);
            }
            let datatype = DataType::from_name(to.datatype.name()).expect("both have the protocol's names");
            Tensor { datatype, shape, data: data.freeze() }
        }))
    }
}

/// Samples of 16 bits, where they are if they are aligned.
fn samples(data: &[u8]) -> Cow<'_, [u16]> {
    bytemuck::try_cast_slice(data).map_or_else(|_| bytemuck::pod_collect_to_vec(data).into(), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::staging::Memory,
        image::{Color, Layout},
    };

    fn input(color: Color, layout: Layout, axes: [bool; 2]) -> PixelInput {
        let to = Preprocess { color, layout, mean: [0.25; 3], ..Preprocess::new(5, 4) };
        PixelInput::new(&to, axes[0], axes[1]).expect("numbers")
    }

    fn reads(input: &PixelInput, shape: &[usize]) -> Option<Vec<usize>> {
        input.reading(DataType::Uint8, shape)?.map(|reading| reading.shape).ok()
    }

    #[test]
    fn the_networks_shape_follows_from_that_of_the_pixels() {
        let color = input(Color::Bgr, Layout::Nchw, [true, true]);
        assert_eq!(color.shape(5, 4), [1, 4, 5, 3]);
        assert_eq!(reads(&color, &[7, 4, 5, 3]), Some(vec![7, 3, 4, 5]));
        assert_eq!(reads(&input(Color::Rgb, Layout::Nhwc, [false, true]), &[4, 5, 3]), Some(vec![4, 5, 3]));
        let gray = input(Color::Gray, Layout::Nchw, [true, false]);
        assert_eq!(gray.shape(9, 2), [1, 2, 9, 1]);
        assert_eq!(reads(&gray, &[7, 2, 9, 1]), Some(vec![7, 2, 9]), "of any size");
        for shape in [&[7, 4, 5][..], &[7, 4, 5, 1], &[4, 5, 3], &[1, 7, 4, 5, 3]] {
            assert_eq!(reads(&color, shape), None, "{shape:?}");
        }
        assert!(color.reading(DataType::Fp32, &[7, 3, 4, 5]).is_none(), "the network's own");
        let bytes = Preprocess { datatype: image::DataType::Uint8, ..Preprocess::new(5, 4) };
        assert_eq!(PixelInput::new(&bytes, true, true), None);
    }

    #[test]
    fn every_item_of_a_batch_is_normalised_in_either_depth() {
        let input = input(Color::Rgb, Layout::Nchw, [true, true]);
        let blocks = Blocks::new(Memory::Plain);
        let low: Vec<u8> = (0..3 * 60).map(|i| i as u8).collect();
        // One byte into a block: not where 16 bits may be read.
        let high: Vec<u8> =
            [0].into_iter().chain(low.iter().flat_map(|v| (u16::from(*v) * 257).to_ne_bytes())).collect();
        let numbers = |datatype, data: &[u8]| {
            let view = TensorView { datatype, shape: vec![3, 4, 5, 3], data };
            let tensor = input.normalize(&view, &blocks).expect("pixels").expect("an image's shape");
            assert_eq!((tensor.datatype, &tensor.shape[..]), (DataType::Fp32, &[3, 3, 4, 5][..]));
            tensor.to_f32().expect("numbers")
        };
        let got = numbers(DataType::Uint8, &low);
        assert_eq!(numbers(DataType::Uint16, &high[1..]), got);
        for item in 0..3 {
            for pixel in 0..20 {
                for channel in 0..3 {
                    let value = f32::from(low[item * 60 + pixel * 3 + channel]);
                    assert_eq!(got[item * 60 + channel * 20 + pixel], value * (1.0 / 255.0) - 0.25);
                }
            }
        }
    }
}
