//! Image: an output that is a picture, for super-resolution, restoration, style transfer, colouring, depth and mattes.

use super::{
    Outputs, Picture, choose,
    planes::{Planes, both_ways, extent, of_item},
    wrong_shape,
};
use crate::{
    engine::{Batching, DataType, Dim, Signature, Tensor, TensorSpec, show},
    image::{Layout, Placement},
};

/// Settings of an image-to-image model.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// The output to read. If not set: the only output.
    ///
    /// `[1, C, H, W]` or `[1, H, W, C]` with 1, 3 or 4 channels (without the 1 for models that do not batch), or `[1, H, W]` or `[H, W]`
    /// with one channel.
    pub output: Option<String>,
    /// Where the channels are. If not set: the axis of extent 1, 3 or 4.
    pub layout: Option<Layout>,
    /// Which values are black and white. If not set: those of the output's type, if that tells.
    pub range: Option<Range>,
    /// Whether the network's channels are blue, green, red.
    pub bgr: bool,
    /// Bits of a channel in a PNG: 8 or 16.
    pub depth: u8,
    /// The size of the answered picture.
    pub size: Size,
    /// Width and height of the model's image input in pixels, set by resolving; `None` where images keep their size.
    pub input: Option<[u32; 2]>,
}

/// Which values become black and white.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// The given values, which differ.
    Of([f32; 2]),
    /// The smallest and the largest value of each picture.
    Auto,
}

/// The size of the answered picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// That of the posted image, with the same things in the same places.
    Source,
    /// That of the network's output.
    Output,
}

impl Default for Image {
    fn default() -> Image {
        Image {
            output: None,
            layout: None,
            range: None,
            bgr: false,
            depth: 8,
            size: Size::Source,
            input: None,
        }
    }
}

const SHAPE: &str = "[1, channels, height, width], [1, height, width, channels] or [1, height, width], with 1, 3 or 4 channels (other \
                     numbers are served with task = \"tensors\")";

impl Image {
    pub(super) fn resolve(
        mut self,
        signature: &Signature,
        input: Option<[u32; 2]>,
        batch_axis: bool,
    ) -> Result<Image, String> {
        let output = choose(signature, self.output.as_deref(), "image.output")?;
        self.input = input;
        self.range = Some(match self.range {
            Some(range) => range,
            None => usual_range(output)?,
        });
        // If the file leaves this open, resolving is repeated once a shape has been seen.
        if let Some(planes) = self.planes_of_file(output, signature, batch_axis)? {
            self.fits(&output.name, &output.shape, planes)?;
            // The layout is settled for every size that an answer may have.
            self.layout = Some(planes.layout);
        }
        self.output = Some(output.name.clone());
        Ok(self)
    }

    /// The most memory that the answer and its written form take at one time, in bytes; 0 for outputs that hold no picture.
    pub fn bytes(&self, outputs: &[Tensor], signature: &Signature, placement: &Placement) -> u64 {
        let Ok(outputs) = Outputs::new(outputs, signature) else { return 0 };
        let Ok(output) = outputs.get(self.output.as_deref()) else { return 0 };
        let Ok(Some(planes)) = self.planes(output.name, &output.shape()) else { return 0 };
        let given = output.tensor.elements() as u64;
        // The numbers as `f32`; then the encoder's input, filtered, compressed, and twice as base64.
        let each = 4 + 6 * u64::from(self.depth / 8);
        match self.size {
            Size::Output => given * each,
            Size::Source => {
                let [width, height] = [placement.source.0, placement.source.1].map(u64::from);
                let channels = extent(planes.channels) as u64;
                // Channels are interleaved, and rows are resized before columns.
                let between = width * extent(planes.height) as u64 * channels;
                given * 8 + between * 4 + width * height * channels * each
            }
        }
    }

    /// The picture in the place of the posted image; without a placement, as the network gives it.
    pub(super) fn answer(
        &self,
        outputs: &Outputs<'_>,
        placement: Option<&Placement>,
    ) -> Result<Picture, String> {
        let output = outputs.get(self.output.as_deref())?;
        let shape = output.shape();
        let wrong = || wrong_shape(output.name, &shape, SHAPE);
        let planes = self.planes(output.name, &shape)?.ok_or_else(wrong)?;
        self.fits(output.name, &shape, planes)?;
        let [width, height] =
            [planes.width, planes.height].map(|side| u32::try_from(extent(side)).unwrap_or(0));
        if width == 0 || height == 0 {
            return Err(wrong());
        }
        let channels = extent(planes.channels);
        let mut values = interleaved(output.values()?, channels, planes.layout);
        if self.bgr {
            values.chunks_exact_mut(channels).for_each(|pixel| pixel.swap(0, 2));
        }
        let mut size = [width, height];
        if let Some(placement) = placement {
            let input = self.input.unwrap_or(placement.input.into());
            if self.size == Size::Source {
                values = placement.bring_back(values, size, channels, input)?;
                size = placement.source.into();
            } else if placement.is_filled_up() {
                let shown = placement.shown_in(size);
                values = shown.bring_back(values, size, channels, size)?;
                size = shown.source.into();
            }
        }
        let range = self.range.unwrap_or(Range::Auto);
        Ok(Picture::new(size, channels as u8, values, range, self.depth))
    }

    /// The meaning of the axes, from the model file; `None` if it does not tell.
    fn planes_of_file(
        &self,
        output: &TensorSpec,
        signature: &Signature,
        batch_axis: bool,
    ) -> Result<Option<Planes>, String> {
        let batches = batch_axis && signature.batching() != Batching::Whole;
        match output.shape[..] {
            [] => return Ok(None),
            // One number for each item, or a vector: these are not rows of a picture.
            [_, _] if batches => return Err(wrong_shape(&output.name, &output.shape, SHAPE)),
            _ => {}
        }
        let layout = ("image.layout", self.layout);
        match Planes::only_beside_a_batch(output, signature, batch_axis, layout)? {
            Some(only) => Ok(Some(only)),
            None => self.planes(&output.name, &output.shape),
        }
    }

    /// The meaning of the axes; `None` if open extents leave it undecided.
    fn planes(&self, name: &str, shape: &[Dim]) -> Result<Option<Planes>, String> {
        if let [height, width] = *shape {
            return Ok(Some(Planes::only(height, width)));
        }
        let axes = of_item(shape).ok_or_else(|| wrong_shape(name, shape, SHAPE))?;
        let are_channels = |dim| matches!(dim, Dim::Fixed(1 | 3 | 4));
        let layout = match (self.layout, are_channels(axes[0]), are_channels(axes[2])) {
            (Some(layout), ..) => layout,
            (None, true, false) => Layout::Nchw,
            (None, false, true) => Layout::Nhwc,
            (None, true, true) => return Err(both_ways(name, shape, "image.layout")),
            (None, false, false) => {
                return match axes {
                    // One that is open may be the channels. Beside two open sides, a number that no picture has is that of channels.
                    [Dim::Free, _, Dim::Free]
                    | [Dim::Free, Dim::Fixed(_), _]
                    | [_, Dim::Fixed(_), Dim::Free] => Ok(None),
                    _ => Err(wrong_shape(name, shape, SHAPE)),
                };
            }
        };
        Ok(Some(Planes::of(axes, layout)))
    }

    /// Checks that there are as many channels as a picture can have, and as the settings require.
    fn fits(&self, name: &str, shape: &[Dim], planes: Planes) -> Result<(), String> {
        match planes.channels {
            Dim::Fixed(1) if self.bgr => Err(format!(
                "image.color = \"bgr\" is only read of 3 or 4 channels: output {name:?} of shape {} has 1",
                show(shape)
            )),
            Dim::Fixed(1 | 3 | 4) | Dim::Free => Ok(()),
            Dim::Fixed(_) => Err(wrong_shape(name, shape, SHAPE)),
        }
    }
}

/// The usual black and white of an output's type.
fn usual_range(output: &TensorSpec) -> Result<Range, String> {
    match output.datatype {
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 | DataType::Bool => {
            Ok(Range::Of([0.0, 1.0]))
        }
        DataType::Uint8 => Ok(Range::Of([0.0, 255.0])),
        DataType::Uint16 => Ok(Range::Of([0.0, 65535.0])),
        datatype => Err(format!(
            "output {:?} is {datatype}, which does not tell what is black and white: set image.range, as [0, 255], or \"auto\" for the \
             least and the greatest of each picture",
            output.name
        )),
    }
}

/// The values with the channels of each pixel interleaved.
fn interleaved(values: Vec<f32>, channels: usize, layout: Layout) -> Vec<f32> {
    if layout == Layout::Nhwc || channels == 1 {
        return values;
    }
    let pixels = values.len() / channels;
    let mut side_by_side = vec![0.0; values.len()];
    for (channel, plane) in values.chunks_exact(pixels.max(1)).enumerate() {
        for (pixel, value) in side_by_side.chunks_exact_mut(channels).zip(plane) {
            pixel[channel] = *value;
        }
    }
    side_by_side
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};
    use crate::image::{Preprocess, Resize};
    use bytes::Bytes;

    fn answer(task: Image, tensor: &Tensor, placement: Option<&Placement>) -> Result<Picture, String> {
        answer_of(task, tensor, placement, Some([4, 4]))
    }

    fn answer_of(
        task: Image,
        tensor: &Tensor,
        placement: Option<&Placement>,
        input: Option<[u32; 2]>,
    ) -> Result<Picture, String> {
        let mut signature = signature(&[("out", &[])]);
        signature.outputs[0].datatype = tensor.datatype;
        let task = task.resolve(&signature, input, true)?;
        let tensors = [tensor.clone()];
        task.answer(&Outputs::new(&tensors, &signature)?, placement)
    }

    /// The result of resolving for an output of this shape, with a batch axis.
    fn layout(shape: &[i64]) -> Result<Option<Layout>, String> {
        let signature = signature(&[("out", shape)]);
        Image::default().resolve(&signature, None, true).map(|task| task.layout)
    }

    #[test]
    fn the_axis_of_one_three_or_four_has_the_channels() {
        let (nchw, nhwc) = (Ok(Some(Layout::Nchw)), Ok(Some(Layout::Nhwc)));
        for (shape, expected) in [
            (&[-1, 3, -1, -1][..], &nchw),
            (&[-1, -1, -1, 4], &nhwc),
            (&[1, 1, 512, 512], &nchw),
            (&[-1, 64, 64, 3], &nhwc),
            // A plane for each item, even if it is only as wide as there may be channels.
            (&[-1, 64, 64], &nchw),
            (&[-1, 64, 3], &nchw),
            // Decided by the output of a pass.
            (&[-1, -1, -1, -1], &Ok(None)),
            (&[-1, -1, 64, 64], &Ok(None)),
            (&[], &Ok(None)),
        ] {
            assert_eq!(&layout(shape), expected, "{shape:?}");
        }
    }

    #[test]
    fn what_cannot_be_a_picture_is_refused_with_what_to_do() {
        let two = layout(&[-1, 2, 64, 64]).unwrap_err();
        assert_eq!(two, format!("output \"out\" has shape [?, 2, 64, 64], expected {SHAPE}"));
        let both = layout(&[-1, 3, 64, 4]).unwrap_err();
        assert_eq!(both, "output \"out\" of shape [?, 3, 64, 4] can be read both ways: set image.layout");
        // Scores of classes, and shapes with more axes than a picture has.
        for shape in [&[-1, 1000][..], &[-1], &[-1, 3, 8, 64, 64], &[2, 3, 64, 64]] {
            assert!(
                layout(shape).unwrap_err().contains("expected [1, channels, height, width]"),
                "{shape:?}"
            );
        }
        let signature = |datatype| {
            let mut signature = signature(&[("out", &[-1, 1, 8, 8])]);
            signature.outputs[0].datatype = datatype;
            signature
        };
        let error = Image::default().resolve(&signature(DataType::Int32), None, true).unwrap_err();
        assert!(error.starts_with("output \"out\" is INT32, ") && error.contains("image.range"), "{error}");
        let ranged = Image { range: Some(Range::Auto), ..Image::default() };
        assert!(ranged.resolve(&signature(DataType::Int32), None, true).is_ok());
        let error = Image::default().resolve(&signature(DataType::Bytes), None, true).unwrap_err();
        assert_eq!(error, "output \"out\" is BYTES, expected numbers");
        let bgr = Image { bgr: true, ..Image::default() };
        let error = bgr.resolve(&signature(DataType::Fp32), None, true).unwrap_err();
        assert!(error.starts_with("image.color = \"bgr\" is only read of 3 or 4 channels"), "{error}");
        let turned = Image { layout: Some(Layout::Nhwc), ..Image::default() };
        assert!(turned.resolve(&signature(DataType::Fp32), None, true).unwrap_err().contains("[?, 1, 8, 8]"));
    }

    #[test]
    fn channels_lie_side_by_side_in_every_layout() {
        // Two pixels beside each other: 1 2 3 and 4 5 6.
        let pixels = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let planes = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
        let values = |task: &Image, shape: &[usize], numbers: &[f32]| {
            let picture = answer(task.clone(), &floats(shape, numbers), None).unwrap();
            (picture.width, picture.height, picture.channels, picture.values)
        };
        let rgb = Image::default();
        assert_eq!(values(&rgb, &[1, 3, 1, 2], &planes), (2, 1, 3, pixels.to_vec()));
        assert_eq!(values(&rgb, &[3, 1, 2], &planes), (2, 1, 3, pixels.to_vec()));
        let last = Image { layout: Some(Layout::Nhwc), ..Image::default() };
        assert_eq!(values(&last, &[1, 1, 2, 3], &pixels), (2, 1, 3, pixels.to_vec()));
        assert_eq!(values(&last, &[1, 2, 3], &pixels), (2, 1, 3, pixels.to_vec()));
        assert_eq!(values(&rgb, &[1, 2], &pixels[..2]), (2, 1, 1, vec![1.0, 2.0]));
        assert_eq!(values(&rgb, &[1, 2, 2], &pixels[..4]), (2, 2, 1, pixels[..4].to_vec()));
        let bgr = Image { bgr: true, layout: Some(Layout::Nchw), ..Image::default() };
        assert_eq!(values(&bgr, &[1, 3, 1, 2], &planes).3, [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]);
        // Alpha stays where it is.
        assert_eq!(values(&bgr, &[1, 4, 1, 1], &pixels[..4]).3, [3.0, 2.0, 1.0, 4.0]);
    }

    #[test]
    fn a_type_tells_what_is_white() {
        let white = |datatype, data: &[u8]| {
            let tensor = Tensor { datatype, shape: vec![1, 1, 1, 1], data: Bytes::copy_from_slice(data) };
            let picture = answer(Image { layout: Some(Layout::Nchw), ..Image::default() }, &tensor, None);
            let picture = picture.unwrap();
            (picture.range[1], picture.values[0])
        };
        assert_eq!(white(DataType::Uint8, &[255]), (255.0, 255.0));
        assert_eq!(white(DataType::Uint16, &[255, 255]), (65535.0, 65535.0));
        assert_eq!(white(DataType::Bool, &[1]), (1.0, 1.0));
        assert_eq!(white(DataType::Fp16, &[0, 0x3c]), (1.0, 1.0));
    }

    #[test]
    fn a_picture_lies_where_the_posted_image_does() {
        // 8 × 4 posted, input 4 × 4: scale 2, one row of padding above and below.
        let placement = Preprocess { resize: Resize::Letterbox, ..Preprocess::new(4, 4) }.placement(8, 4);
        #[rustfmt::skip]
        let tensor = floats(&[1, 4, 4], &[
            99.0, 99.0, 99.0, 99.0,
             0.0,  4.0,  8.0, 12.0,
             0.0,  4.0,  8.0, 12.0,
            99.0, 99.0, 99.0, 99.0,
        ]);
        let planes = Image { layout: Some(Layout::Nchw), ..Image::default() };
        let back = answer(planes.clone(), &tensor, Some(&placement)).unwrap();
        assert_eq!((back.width, back.height), (8, 4));
        assert_eq!(back.values, [0.0, 1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 12.0].repeat(4));
        let own = Image { size: Size::Output, ..planes };
        let given = answer(own.clone(), &tensor, Some(&placement)).unwrap();
        assert_eq!((given.width, given.height, given.values[0]), (4, 4, 99.0));
        // One row of padding, which is below: nor is that cut.
        let placement = Preprocess { resize: Resize::Letterbox, ..Preprocess::new(4, 4) }.placement(4, 3);
        let given = answer(own, &tensor, Some(&placement)).unwrap();
        assert_eq!((given.width, given.height), (4, 4));
    }

    #[test]
    fn a_picture_of_an_image_that_was_filled_up_is_cut_to_it_at_whatever_size() {
        let to = Preprocess { resize: Resize::Multiple(2), ..Preprocess::new(4, 2) };
        let (placement, layout) = (to.placement(3, 1), Some(Layout::Nchw));
        let as_large = floats(&[1, 2, 4], &[0.0, 1.0, 2.0, 1.0, 0.0, 1.0, 2.0, 1.0]);
        for size in [Size::Output, Size::Source] {
            let task = Image { size, layout, ..Image::default() };
            let cut = answer_of(task, &as_large, Some(&placement), None).unwrap();
            assert_eq!((cut.width, cut.height, &cut.values[..]), (3, 1, &[0.0, 1.0, 2.0][..]), "{size:?}");
        }
        let twice: Vec<f32> = (0..32).map(|n| n as f32).collect();
        let twice = floats(&[1, 4, 8], &twice);
        let task = Image { size: Size::Output, layout, ..Image::default() };
        let own = answer_of(task, &twice, Some(&placement), None).unwrap();
        assert_eq!((own.width, own.height), (6, 2));
        assert_eq!(own.values, [0., 1., 2., 3., 4., 5., 8., 9., 10., 11., 12., 13.]);
    }

    #[test]
    fn a_number_of_channels_that_no_picture_has_is_refused_at_load_where_sides_are_open() {
        let load = |shape: &[i64]| Image::default().resolve(&signature(&[("out", shape)]), None, true);
        for shape in [[-1, 2, -1, -1], [-1, -1, -1, 33]] {
            let told = load(&shape).unwrap_err();
            assert!(told.contains("with 1, 3 or 4 channels"), "{told}");
        }
        for shape in [[-1, -1, 64, 64], [-1, 64, 64, -1], [-1, -1, -1, -1]] {
            assert_eq!(load(&shape).unwrap().layout, None, "that is seen by the first answer");
        }
    }

    #[test]
    fn outputs_that_are_no_picture_after_all_are_errors() {
        let error = answer(Image::default(), &floats(&[1, 5, 8, 8], &[0.0; 320]), None).unwrap_err();
        assert!(error.starts_with("output \"out\" has shape [1, 5, 8, 8], expected"), "{error}");
        assert!(answer(Image::default(), &floats(&[1, 3, 0, 8], &[]), None).is_err());
        // Any numbers are accepted in a picture.
        assert!(answer(Image::default(), &floats(&[1, 1, 1, 2], &[f32::NAN, f32::INFINITY]), None).is_ok());
    }
}
