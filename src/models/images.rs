//! The resolved conversion of an image to a model's input: its size, its tensor, and the memory that it is written to.

use super::manifest::Input;
use crate::{
    engine::{DataType, Dim, PixelInput, Tensor, TensorSpec, staging::Staging},
    image::{self, Color, Filter, Layout, Pages, Preprocess, Resize},
    tasks::SizeOrder,
};

/// How an image becomes a model's input or inputs.
pub struct ImageInput {
    /// Resize, colour, normalisation. A side that each image sets itself is 1 here: use
    /// [`preprocess_for`](ImageInput::preprocess_for).
    pub preprocess: Preprocess,
    /// How engines convert pixels to numbers; `None` if the model takes pixels as they are, or `planes`.
    pub pixels: Option<PixelInput>,
    /// Where the pages of a file are the channels of one image: mean and standard deviation of each. All else is prepared as grey images
    /// are.
    pub planes: Option<Vec<[f32; 2]>>,
    /// `None` if images keep their own size: each then gets memory of its own.
    pub(super) staging: Option<Slabs>,
    pub(super) own_width: bool,
    pub(super) own_height: bool,
    /// Whether the first axis of its tensor counts images.
    pub(super) batch_axis: bool,
    pub(super) channel_axis: bool,
    /// The inputs after the image's.
    pub(super) others: Vec<Other>,
}

/// The word for a value, from a table of all words.
fn word<T: PartialEq>(all: &[(&'static str, T)], value: &T) -> &'static str {
    all.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word)
}

/// The word for a layout.
pub(super) fn layout_word(layout: Layout) -> &'static str {
    match layout {
        Layout::Nchw => "nchw",
        Layout::Nhwc => "nhwc",
    }
}

/// A further input of a model that takes images.
pub(super) enum Other {
    /// The size in whose pixels boxes are to come, as this type and in this order.
    Size(DataType, SizeOrder),
    /// The same for each image.
    Constant(Tensor),
}

/// Memory that images are written to: a slot holds one image, a slab the largest batch. It is allocated on demand.
pub(super) struct Slabs {
    /// For 8-bit images, and for images that the model takes as they are.
    pub(super) low: Staging,
    /// For 16-bit pixels.
    pub(super) high: Staging,
}

/// Slabs that a model has while it is served: for three batches in flight, and for the one that images are being written to.
pub(super) const SLABS_READY: usize = 4;

/// The form in which an image is staged.
pub struct Form<'a> {
    /// Element type.
    pub datatype: DataType,
    /// Of one image; with a batch axis, `shape[0]` is 1 and counts items.
    pub shape: Vec<usize>,
    /// Its size.
    pub bytes: usize,
    /// Whether these are pixels, which an engine normalises.
    pub is_pixels: bool,
    /// The memory that it is written to, if it shares memory with other images.
    pub staging: Option<&'a Staging>,
}

impl ImageInput {
    /// Width and height of the input in pixels; `None` if images keep their own.
    pub fn size(&self) -> Option<[u32; 2]> {
        let own = self.own_width || self.own_height;
        (!own).then_some([self.preprocess.width, self.preprocess.height])
    }

    /// The conversion as a line of a manifest that can replace its `[input]`: the author's settings, and the defaults in effect.
    pub fn told(&self, Input { name, constants, .. }: &Input) -> String {
        let Preprocess { width, height, resize, filter, color, background, pad, scale, mean, std, .. } =
            &self.preprocess;
        let resize = match resize {
            Resize::Shorter(size) => format!("\"shorter\", size = {size}"),
            Resize::Exact => "\"none\"".to_owned(),
            Resize::Multiple(side) => format!("\"none\", multiple = {side}"),
            Resize::Stretch => "\"stretch\"".to_owned(),
            Resize::Square(size) => format!("\"stretch\", size = {size}"),
            Resize::Height => "\"height\"".to_owned(),
            Resize::Letterbox => format!("\"letterbox\", pad = {pad}"),
        };
        let sides = [("width", width, self.own_width), ("height", height, self.own_height)];
        let sides =
            sides.into_iter().filter(|(.., own)| !own).map(|(key, side, _)| format!("{key} = {side}"));
        let filter = (!matches!(self.preprocess.resize, Resize::Exact | Resize::Multiple(_)))
            .then(|| format!("filter = {:?}", word(&Filter::ALL, filter)));
        let layout = layout_word(self.preprocess.layout);
        let each = |values: &[f32]| match values {
            [one] => format!("{one:?}"),
            values => format!("{values:?}"),
        };
        let (channels, mean, std) = match &self.planes {
            None => {
                let depth = color.channels();
                let color = format!("color = {:?}", word(&Color::ALL, color));
                (color, each(&mean[..depth]), each(&std[..depth]))
            }
            Some(planes) => {
                let of = |index: usize| {
                    let mut values: Vec<f32> = planes.iter().map(|plane| plane[index]).collect();
                    if values.iter().all(|value| *value == values[0]) {
                        values.truncate(1);
                    }
                    values
                };
                (format!("pages = {:?}", word(&Pages::ALL, &Pages::Channels)), each(&of(0)), each(&of(1)))
            }
        };
        let constants: Vec<_> =
            constants.iter().map(|(name, number)| format!("{name:?} = {number}")).collect();
        let name = name.as_ref().map(|name| format!("name = {name:?}"));
        let keys: Vec<_> = name
            .into_iter()
            .chain(std::iter::once(format!("resize = {resize}")))
            .chain(sides)
            .chain(filter)
            .chain(std::iter::once(channels))
            // Naming a layout would say that there is a channel axis.
            .chain(self.channel_axis.then(|| format!("layout = {layout:?}")))
            .chain([format!("scale = {scale}"), format!("mean = {mean}"), format!("std = {std}")])
            // Pages that are channels have no opacity.
            .chain(self.planes.is_none().then(|| format!("background = {background:?}")))
            .chain((!constants.is_empty()).then(|| format!("constants = {{ {} }}", constants.join(", "))))
            .collect();
        format!("input = {{ {} }}", keys.join(", "))
    }

    /// The keys of `[input]` that nothing but a default sets, although no file tells what its network was trained on.
    pub fn by_default(&self, input: &Input) -> Vec<&'static str> {
        let numbers = self.preprocess.datatype != image::DataType::Uint8;
        let keys = [
            ("resize", input.resize.is_none()),
            ("color", input.color.is_none() && self.preprocess.color == Color::Rgb),
            ("scale", numbers && input.scale.is_none()),
            ("mean", numbers && input.mean.is_none()),
            ("std", numbers && input.std.is_none()),
        ];
        keys.into_iter().filter(|(_, unset)| *unset).map(|(key, _)| key).collect()
    }

    /// A mean that is more than any pixel of 8 bits has after the scale, if there is one: only measured values, or 16 bits whose counts
    /// nothing makes of levels, have such a mean.
    pub(super) fn mean_beyond_pixels(&self) -> Option<f32> {
        let brightest = (255.0 * self.preprocess.scale).max(0.0);
        let of_planes = self.planes.iter().flatten().map(|[mean, _]| *mean);
        self.preprocess.mean.into_iter().chain(of_planes).find(|mean| *mean > brightest)
    }

    /// The preprocessing for an image of `width` × `height` pixels. An image whose size does not fit is refused when this is applied.
    pub fn preprocess_for(&self, width: u32, height: u32) -> Preprocess {
        let mut preprocess = self.preprocess.clone();
        if self.own_width {
            preprocess.width = match preprocess.resize {
                Resize::Height => preprocess.width_of((width, height)),
                Resize::Multiple(side) => width.next_multiple_of(side),
                _ => width,
            };
        }
        if self.own_height {
            preprocess.height = match preprocess.resize {
                Resize::Multiple(side) => height.next_multiple_of(side),
                _ => height,
            };
        }
        preprocess
    }

    /// The form in which an image of `width` × `height` pixels with `bytes_each` bytes per sample is staged: pixels, or what the network
    /// reads, if that is bytes or the samples are measured values (4 bytes), which no engine normalises.
    pub fn form(&self, bytes_each: usize, width: u32, height: u32) -> Form<'_> {
        let preprocess = self.preprocess_for(width, height);
        let pixels = self.pixels.as_ref().zip(PixelInput::DATATYPES.get(bytes_each - 1));
        let (datatype, shape, bytes) = match pixels {
            None => {
                let own = DataType::from_name(preprocess.datatype.name());
                let own = own.expect("both have the protocol's names");
                let shape = self.item_shape(width, height);
                let bytes = shape.iter().product::<usize>() * preprocess.datatype.size();
                (own, shape, bytes)
            }
            Some((pixels, datatype)) => {
                let shape = pixels.shape(preprocess.width, preprocess.height);
                let bytes = shape.iter().product::<usize>() * bytes_each;
                (*datatype, shape, bytes)
            }
        };
        Form { datatype, shape, bytes, is_pixels: pixels.is_some(), staging: self.staging(datatype) }
    }

    /// What the pages of a file are.
    pub fn pages(&self) -> Pages {
        if self.planes.is_some() { Pages::Channels } else { Pages::Pictures }
    }

    /// The shared memory for staged images of this type.
    pub fn staging(&self, datatype: DataType) -> Option<&Staging> {
        let slabs = self.staging.as_ref()?;
        match datatype {
            DataType::Uint8 => Some(&slabs.low),
            DataType::Uint16 => Some(&slabs.high),
            _ => None,
        }
    }

    /// The forms in which requests may send pixels for the input that they see as `own`.
    pub(super) fn pixel_specs(&self, own: &TensorSpec) -> Vec<TensorSpec> {
        let Some(pixels) = &self.pixels else { return Vec::new() };
        let [width, height] = [self.preprocess.width, self.preprocess.height];
        let mut shape: Vec<Dim> = pixels.shape(width, height).into_iter().map(Dim::Fixed).collect();
        let last = shape.len() - 1;
        if self.own_height {
            shape[last - 2] = Dim::Free;
        }
        if self.own_width {
            shape[last - 1] = Dim::Free;
        }
        if self.batch_axis {
            shape[0] = own.shape[0];
        }
        let spec = |datatype| TensorSpec { name: own.name.clone(), datatype, shape: shape.clone() };
        PixelInput::DATATYPES.map(spec).to_vec()
    }

    /// The model's inputs for a staged image of `width` × `height` pixels. An input for the size of boxes gets that of the model's
    /// input: a placement maps boxes from there to the posted image, however that was resized.
    pub fn inputs(&self, staged: Tensor, (width, height): (u32, u32)) -> Vec<Tensor> {
        std::iter::once(staged).chain(self.behind(width, height)).collect()
    }

    /// The tensors after the image's, for an image of `width` × `height` pixels; with a batch axis, `shape[0]` is 1 and counts items.
    pub fn behind(&self, width: u32, height: u32) -> impl Iterator<Item = Tensor> {
        let to = self.preprocess_for(width, height);
        self.others.iter().filter_map(move |other| match other {
            Other::Size(datatype, order) => {
                let shape = self.batch_axis.then_some(1).into_iter().chain([2]).collect();
                let data = size_bytes(*datatype, order.of([to.width, to.height]))?.into();
                Some(Tensor { datatype: *datatype, shape, data })
            }
            Other::Constant(tensor) => Some(tensor.clone()),
        })
    }

    /// Shape of the tensor of one image of `width` × `height` pixels; with a batch axis, `shape[0]` is 1 and counts
    /// items.
    pub fn item_shape(&self, width: u32, height: u32) -> Vec<usize> {
        let to = self.preprocess_for(width, height);
        let mut extents = to.shape();
        if let Some(planes) = &self.planes {
            let axis = match to.layout {
                Layout::Nchw => 0,
                Layout::Nhwc => 2,
            };
            extents[axis] = planes.len();
        }
        let mut shape = if self.channel_axis {
            extents.to_vec()
        } else {
            // Grey without a channel axis: the layout is channels first then, see `input`.
            extents[1..].to_vec()
        };
        if self.batch_axis {
            shape.insert(0, 1);
        }
        shape
    }
}

/// A size as bytes of a type; `None` for types that no model takes sizes in.
pub(super) fn size_bytes(datatype: DataType, sides: [u32; 2]) -> Option<Vec<u8>> {
    Some(match datatype {
        DataType::Int64 => sides.map(|n| i64::from(n).to_le_bytes()).concat(),
        DataType::Int32 => sides.map(u32::to_le_bytes).concat(),
        DataType::Fp32 => sides.map(|n| (n as f32).to_le_bytes()).concat(),
        _ => return None,
    })
}
