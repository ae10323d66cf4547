//! A super-resolution picture: localizations add up to brightness as they arrive; the PNG is made at the end.
//!
//! The picture covers the frame, so its first pixel begins at the frame's outer corner. Its density is counts per pixel. Each localization
//! counts 1: in the histogram at its position, in the blurred picture spread as the Gaussian of its standard errors. Pixels above the white
//! point are white. With colors by z, a second image adds up z.

mod density;
mod render;

use super::{
    Counts, Encoder, Parameter, Pieces, Table,
    options::{ColorBy, PictureOptions, Render, Scale},
    schema::Schema,
};
use bytes::Bytes;
use density::Density;
use std::sync::Arc;

/// The most pixels per camera pixel at automatic scale.
const AUTO_PER_PIXEL_MAX: f64 = 10.0;
/// The longest side of a picture at automatic scale, in px.
const AUTO_SIDE_MAX: f64 = 4096.0;
/// The allowed number of the picture's pixels per camera pixel.
const PER_PIXEL: std::ops::RangeInclusive<f64> = 0.01..=64.0;
/// The widest Gaussian that a localization is drawn as, by its sigma in the picture's pixels. The work is the square of it: some 250,000
/// additions.
const SIGMA_MAX: f64 = 64.0;

pub(super) struct Picture {
    schema: Arc<Schema>,
    options: PictureOptions,
    /// The picture's pixels per camera pixel, along x and y.
    per_pixel: [f64; 2],
    density: Density,
    /// Localizations that are in no pixel: outside the frame, or with too large an error.
    left_out: u64,
}

impl Picture {
    pub(super) fn new(schema: &Arc<Schema>, options: &PictureOptions) -> Result<Picture, String> {
        check(schema, options)?;
        let frame = schema.frame_size.ok_or(
            "a picture shows whole frames, and ROIs alone do not tell how large theirs are: post the frames, or choose another format",
        )?;
        let per_pixel = per_pixel(schema, frame, options.scale)?;
        let sigma_max = per_pixel.map(|per_pixel| per_pixel * f64::from(options.error_px_max));
        if let Some(widest) = sigma_max.into_iter().find(|sigma| *sigma > SIGMA_MAX) {
            return Err(format!(
                "error_px_max is {}, which is {widest} pixels of the picture, expected at most {SIGMA_MAX}: choose fewer pixels per \
                 camera pixel, or leave out fits that are less certain",
                options.error_px_max
            ));
        }
        let size = [0, 1].map(|axis| (f64::from(frame[axis]) * per_pixel[axis] - 1e-6).ceil().max(1.0));
        let pixels = size[0] * size[1];
        let sides_max = f64::from(i32::MAX);
        if pixels > options.pixels_max as f64 || size[0] > sides_max || size[1] > sides_max {
            return Err(format!(
                "a picture of {} x {} pixels is above the limit of {} pixels: choose larger pixels, of which \
                 at most {:.3} go to a camera pixel",
                size[0],
                size[1],
                options.pixels_max,
                (options.pixels_max as f64 / (f64::from(frame[0]) * f64::from(frame[1]))).sqrt()
            ));
        }
        let density = Density::new(size.map(|side| side as usize), matches!(options.color_by, ColorBy::Z(_)));
        Ok(Picture { schema: Arc::clone(schema), options: *options, per_pixel, density, left_out: 0 })
    }

    /// Width and height of the picture's pixels in nm, if known.
    fn pixel_nm(&self) -> Option<[f64; 2]> {
        self.schema.pixel_nm.map(|pixel| [0, 1].map(|axis| pixel[axis] / self.per_pixel[axis]))
    }

    /// How the picture's pixels relate to the frame.
    pub(super) fn conventions(&self) -> String {
        let [x, y] = self.per_pixel;
        let size = self.pixel_nm().map_or(String::new(), |[x, y]| format!(" of {x:.3} x {y:.3} nm"));
        format!("{x:.4} x {y:.4} pixels{size} per camera pixel, from the outer corner of the first pixel")
    }
}

fn check(schema: &Schema, options: &PictureOptions) -> Result<(), String> {
    if !(options.white_percentile > 0.0 && options.white_percentile <= 100.0) {
        return Err(format!(
            "white_percentile is {}, expected above 0 and at most 100",
            options.white_percentile
        ));
    }
    if !(options.error_px_max > 0.0 && options.error_px_max <= 2.0) {
        return Err(format!("error_px_max is {}, expected above 0 and at most 2", options.error_px_max));
    }
    if let ColorBy::Z(range) = options.color_by {
        if schema.model.index(Parameter::Z).is_none() {
            return Err(format!("colors by z need a model with z, this is {}", schema.model.name()));
        }
        if let Some([low, high]) =
            range.filter(|[low, high]| !(low.is_finite() && high.is_finite() && low < high))
        {
            return Err(format!(
                "the range of z is {low} to {high} um, expected two numbers, the lower first"
            ));
        }
    }
    Ok(())
}

/// The picture's pixels per camera pixel. If the pixel size is known, the picture's pixels are square.
fn per_pixel(schema: &Schema, frame: [u32; 2], scale: Scale) -> Result<[f64; 2], String> {
    let along_x = |per_pixel: f64| match schema.pixel_nm {
        Some([x, y]) => [per_pixel, per_pixel * y / x],
        None => [per_pixel; 2],
    };
    let per_pixel = match scale {
        Scale::Auto => {
            let longer = f64::from(frame[0]).max(f64::from(frame[1]) * along_x(1.0)[1]);
            along_x((AUTO_SIDE_MAX / longer).floor().clamp(1.0, AUTO_PER_PIXEL_MAX))
        }
        Scale::PerPixel(per_pixel) => along_x(per_pixel),
        Scale::Nanometers(side) => {
            let pixel = schema.need_pixel_nm("a picture with pixels in nm")?;
            pixel.map(|nm| nm / side)
        }
    };
    match per_pixel.iter().find(|per_pixel| !PER_PIXEL.contains(*per_pixel)) {
        Some(wrong) => Err(format!(
            "the picture would have {wrong} pixels per camera pixel, expected {} to {}",
            PER_PIXEL.start(),
            PER_PIXEL.end()
        )),
        None => Ok(per_pixel),
    }
}

impl Encoder for Picture {
    fn rows(&mut self, table: Table, _first: u64, _out: &mut Pieces) -> Result<(), String> {
        let index = |parameter| self.schema.model.index(parameter).unwrap_or_default();
        let axes = [index(Parameter::X), index(Parameter::Y)];
        let z = self.schema.model.index(Parameter::Z);
        for row in 0..table.rows() {
            // From the centre of the first camera pixel to its corner, then to the picture's pixels.
            let place: [f64; 2] = std::array::from_fn(|axis| {
                (f64::from(table.theta[axes[axis]][row]) + 0.5) * self.per_pixel[axis]
            });
            let errors = axes.map(|axis| table.errors[axis][row]);
            let z = z.map_or(0.0, |z| table.theta[z][row]);
            let drawn = match self.options.render {
                Render::Histogram => self.density.count(place, z),
                Render::Blur if errors.iter().all(|error| *error <= self.options.error_px_max) => {
                    let sigma = std::array::from_fn(|axis| f64::from(errors[axis]) * self.per_pixel[axis]);
                    self.density.blur(place, sigma, z)
                }
                Render::Blur => false,
            };
            self.left_out += u64::from(!drawn);
        }
        Ok(())
    }

    fn holds(&self) -> usize {
        // The densities, and the input of the encoder.
        let each = match self.options.color_by {
            ColorBy::Density => size_of::<f32>() + 1,
            ColorBy::Z(_) => 2 * size_of::<f32>() + 3,
        };
        self.density.sums.len() * each
    }

    fn end(self: Box<Self>, counts: &Counts) -> Result<Vec<Bytes>, String> {
        let about = format!(
            "{} localizations in {} frames, {} of them outside the picture or less certain than {} camera pixels; {}",
            counts.written,
            counts.frames,
            self.left_out,
            self.options.error_px_max,
            self.conventions()
        );
        render::png(&self.density, &self.options, self.pixel_nm(), about).map(|png| vec![Bytes::from(png)])
    }
}

#[cfg(test)]
mod tests {
    use crate::tasks::localize::{testing::*, *};

    fn options(picture: PictureOptions) -> Options {
        Options { picture, ..Options::default() }
    }

    /// A table of rows at these places with these errors.
    fn at(schema: &Schema, places: &[[f32; 2]], error: f32) -> Table {
        let mut table = table(schema, places.len());
        for axis in [0, 1] {
            table.theta[axis] = places.iter().map(|place| place[axis]).collect();
            table.errors[axis] = vec![error; places.len()];
        }
        table
    }

    /// Returns color type, width and height, and the bytes of the pixels.
    fn draw(schema: &Schema, picture: PictureOptions, table: &Table) -> (png::ColorType, [u32; 2], Vec<u8>) {
        let bytes = bytes(Format::Png, schema, &options(picture), &[table]);
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut data = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut data).unwrap();
        (info.color_type, [info.width, info.height], data)
    }

    fn square(model: Model) -> Schema {
        Schema { pixel_nm: Some([100.0, 100.0]), frame_size: Some([8, 4]), ..schema(model) }
    }

    #[test]
    fn spots_lie_in_the_pixels_that_they_belong_to() {
        let schema = square(Model::Xynb);
        let picture = PictureOptions {
            render: Render::Histogram,
            scale: Scale::Nanometers(50.0),
            colormap: Colormap::Gray,
            white_percentile: 100.0,
            ..PictureOptions::default()
        };
        // Two at the centre of the camera pixel (3, 1), which is the corner where four of the picture's pixels meet; one in the first
        // corner of the frame; one just inside its last corner; two outside.
        let places = [[3.0, 1.0], [3.0, 1.0], [-0.5, -0.5], [7.49, 3.49], [7.5, 0.0], [0.0, -0.51]];
        let (color, size, data) = draw(&schema, picture, &at(&schema, &places, 0.1));
        assert_eq!((color, size), (png::ColorType::Grayscale, [16, 8]));
        let mut expected = vec![0; 16 * 8];
        expected[3 * 16 + 7] = 255;
        expected[0] = 128;
        expected[7 * 16 + 15] = 128;
        assert_eq!(data, expected);
    }

    #[test]
    fn a_blurred_spot_is_a_gaussian_of_its_error() {
        let schema = square(Model::Xynb);
        let picture = PictureOptions {
            scale: Scale::PerPixel(10.0),
            colormap: Colormap::Gray,
            white_percentile: 100.0,
            ..PictureOptions::default()
        };
        // At the centre of the picture's pixel (35, 15), with a sigma of two of its pixels.
        let (_, size, data) = draw(&schema, picture, &at(&schema, &[[3.05, 1.05]], 0.2));
        assert_eq!(size, [80, 40]);
        let pixel = |x: usize, y: usize| f32::from(data[y * 80 + x]);
        assert_eq!(pixel(35, 15), 255.0);
        for (dx, dy) in [(1, 0), (2, 0), (0, 3), (2, 2)] {
            let expected = 255.0 * (-((dx * dx + dy * dy) as f32) / 8.0).exp();
            // The mean over a pixel is a little flatter than the value at its centre.
            assert!(
                (pixel(35 + dx, 15 + dy) - expected).abs() < 4.0,
                "{dx} {dy}: {}",
                pixel(35 + dx, 15 + dy)
            );
            assert_eq!(pixel(35 + dx, 15 + dy), pixel(35 - dx, 15 - dy));
        }
        // Localizations with an error above the limit are left out.
        let (_, _, data) = draw(&schema, picture, &at(&schema, &[[3.05, 1.05]], 1.01));
        assert!(data.iter().all(|value| *value == 0));
    }

    #[test]
    fn colors_show_z_where_they_are_asked_to() {
        let schema = square(Model::Xyznb);
        let mut table = at(&schema, &[[1.0, 1.0], [6.0, 2.0]], 0.1);
        table.theta[2] = vec![-0.4, 0.4];
        let picture = PictureOptions {
            render: Render::Histogram,
            scale: Scale::PerPixel(1.0),
            color_by: ColorBy::Z(Some([-0.4, 0.4])),
            ..PictureOptions::default()
        };
        let (color, size, data) = draw(&schema, picture, &table);
        assert_eq!((color, size), (png::ColorType::Rgb, [8, 4]));
        assert_eq!(data[(8 + 1) * 3..][..3], [255, 0, 0]);
        assert_eq!(data[(2 * 8 + 6) * 3..][..3], [0, 128, 255]);
        assert_eq!(data.iter().filter(|value| **value > 0).count(), 3);
        let by_z = PictureOptions { color_by: ColorBy::Z(None), ..picture };
        let error = Writer::new(Format::Png, &square(Model::Xynb), &options(by_z)).unwrap_err();
        assert_eq!(error, "colors by z need a model with z, this is xynb");
    }

    #[test]
    fn pixels_are_square_where_those_of_the_camera_are_not() {
        let schema = schema(Model::Xynb);
        let automatic = draw(&schema, PictureOptions::default(), &table(&schema, 1));
        assert_eq!((automatic.0, automatic.1), (png::ColorType::Indexed, [640, 576]));
        let picture = PictureOptions { scale: Scale::Nanometers(60.0), ..PictureOptions::default() };
        assert_eq!(draw(&schema, picture, &table(&schema, 1)).1, [107, 96]);
    }

    #[test]
    fn the_work_for_one_localization_is_bounded() {
        let writer = |error_px_max, scale| {
            let picture =
                PictureOptions { error_px_max, scale: Scale::PerPixel(scale), ..PictureOptions::default() };
            Writer::new(Format::Png, &square(Model::Xynb), &options(picture)).map(drop)
        };
        for (error_px_max, scale) in [(1.0, 64.0), (2.0, 32.0)] {
            assert_eq!(writer(error_px_max, scale), Ok(()));
        }
        let error = writer(2.0, 40.0).unwrap_err();
        assert!(
            error.starts_with("error_px_max is 2, which is 80 pixels of the picture, expected at most 64"),
            "{error}"
        );
    }

    #[test]
    fn sizes_are_bounded_and_automatic_ones_stay_within() {
        let check = |frame_size, scale, expected: Result<(), &str>| {
            let schema = Schema { frame_size, ..square(Model::Xynb) };
            let picture = PictureOptions { scale, ..PictureOptions::default() };
            let writer = Writer::new(Format::Png, &schema, &options(picture));
            match expected {
                Ok(()) => assert!(writer.is_ok(), "{writer:?}"),
                Err(expected) => assert_eq!(writer.unwrap_err(), expected),
            }
        };
        check(Some([2048, 2048]), Scale::Auto, Ok(()));
        check(Some([4096, 4096]), Scale::Auto, Ok(()));
        check(
            Some([2048, 2048]),
            Scale::Nanometers(10.0),
            Err(
                "a picture of 20480 x 20480 pixels is above the limit of 33554432 pixels: choose larger pixels, of \
                 which at most 2.828 go to a camera pixel",
            ),
        );
        check(
            Some([u32::MAX, u32::MAX]),
            Scale::Auto,
            Err("a picture of 4294967295 x 4294967295 pixels is above the \
            limit of 33554432 pixels: choose larger pixels, of which at most 0.000 go to a camera pixel"),
        );
        for scale in
            [Scale::PerPixel(f64::NAN), Scale::PerPixel(-1.0), Scale::Nanometers(0.0), Scale::PerPixel(1e9)]
        {
            let schema = square(Model::Xynb);
            let picture = PictureOptions { scale, ..PictureOptions::default() };
            let error = Writer::new(Format::Png, &schema, &options(picture)).unwrap_err();
            assert!(error.ends_with("pixels per camera pixel, expected 0.01 to 64"), "{error}");
        }
        check(
            None,
            Scale::Auto,
            Err(
                "a picture shows whole frames, and ROIs alone do not tell how large theirs are: post the frames, or choose another format",
            ),
        );
    }

    #[test]
    fn nothing_at_all_is_a_black_picture() {
        let schema = square(Model::Xyznb);
        for color_by in [ColorBy::Density, ColorBy::Z(None)] {
            let picture = PictureOptions { color_by, ..PictureOptions::default() };
            let (_, size, data) = draw(&schema, picture, &table(&schema, 0));
            assert_eq!(size, [80, 40]);
            assert!(data.iter().all(|value| *value == 0));
        }
    }
}
