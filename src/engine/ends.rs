//! The work before and after a network: pixels become numbers before it, and an output may be reduced after it to what the answer
//! needs ([`reduction`](super::reduction)). An engine gets both once, when it is loaded.
//!
//! Images are staged as pixels of 8 or 16 bits, rows by columns by channels (grey, or red, green, blue), and the engine
//! normalises them. So the data in queues and on the way to a device is a quarter or half of what the network reads. Tensors of the
//! network's own type are not changed. A batch has one form, since all its jobs have one type and shape.

use super::{DataType, EngineError, Reduction, Tensor, TensorView, staging::Blocks};
use crate::image::{self, Filter, Pixels, Preprocess, Resize};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The work before and after a network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// How pixels become the numbers of the first input; `None` for a model that takes no images, or takes pixels unchanged.
    pub pixels: Option<PixelInput>,
    /// How outputs may be reduced, for requests that want only the task's answer; `None` where a reduction would save nothing.
    pub reduction: Option<Reduction>,
    /// The input that comes first in batches although it is not the file's first: the one that images become.
    pub first: Option<String>,
    /// Outputs of the file that nobody asks for, and that are not computed.
    pub left_out: Vec<String>,
}

/// How pixels become numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PixelInput {
    /// Its size is replaced by that of the incoming pixels.
    to: Preprocess,
    batch_axis: bool,
    channel_axis: bool,
}

/// A tensor of pixels, and the network's tensor that it becomes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reading {
    /// How an item is normalised.
    pub(super) to: Preprocess,
    /// The number of items.
    pub(super) items: usize,
    /// The shape of the network's tensor.
    pub(super) shape: Vec<usize>,
    /// Whether pixels have 16 bits.
    pub(super) wide: bool,
}

impl PixelInput {
    /// The types that pixels may have.
    pub const DATATYPES: [DataType; 2] = [DataType::Uint8, DataType::Uint16];

    /// For images that `preprocess` resizes to the input. The flags say whether the input has a batch axis and a channel axis. `None`
    /// if the network reads bytes: images are decoded to these directly.
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

    /// How a tensor of pixels is read; `None` if the tensor does not hold pixels.
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
            // Kernels count the values of an item in 32 bits.
            let values = u64::from(width) * u64::from(height) * depth as u64;
            if values > u64::from(u32::MAX) {
                return Err(EngineError::Input(format!(
                    "pixels of shape {shape:?}: an item of {values} values, more than the limit of {}",
                    u32::MAX
                )));
            }
            let extents = to.shape();
            let extents = if self.channel_axis { &extents[..] } else { &extents[1..] };
            let batch = self.batch_axis.then_some(items);
            let shape = batch.into_iter().chain(extents.iter().copied()).collect();
            Ok(Reading { to, items, shape, wide: datatype == DataType::Uint16 })
        })
    }

    /// Turns a tensor of pixels into the network's tensor, in memory from `blocks`; `None` if the tensor does not hold pixels.
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

/// Samples of 16 bits: borrowed if they are aligned, else copied.
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
        // Just below 2^32 values and just above: kernels count them in 32 bits.
        assert!(reads(&color, &[1, 65_535, 21_845, 3]).is_some());
        assert_eq!(reads(&color, &[1, 65_536, 21_846, 3]), None);
        assert!(color.reading(DataType::Fp32, &[7, 3, 4, 5]).is_none(), "the network's own");
        let bytes = Preprocess { datatype: image::DataType::Uint8, ..Preprocess::new(5, 4) };
        assert_eq!(PixelInput::new(&bytes, true, true), None);
    }

    #[test]
    fn every_item_of_a_batch_is_normalised_in_either_depth() {
        let input = input(Color::Rgb, Layout::Nchw, [true, true]);
        let blocks = Blocks::new(Memory::Plain);
        let low: Vec<u8> = (0..3 * 60).map(|i| i as u8).collect();
        // At an offset of one byte, so not aligned for 16 bits.
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
