//! Stacks in, localizations out: from bytes to ROIs, and from rows of fitted spots to files, streams and pictures. Pure: the output depends
//! on the input alone.
//!
//! - [`settings`]: what to fit and what to find, by the keys of manifests and queries.
//! - [`stage`]: from the bytes of a stack to ROIs.
//! - [`chunk`]: ROIs that are fitted together, and the engine's results for them as rows.
//!
//! A [`Writer`] is made for a [`Format`], a [`Schema`] and [`Options`]. It takes [`Table`]s, chunk by chunk, and returns bytes. A
//! [`layout`] says which columns a file has, in which units and from which origin. There is a module per format for the encoding. Several
//! formats share [`number`] (numbers as text), [`held`] (rows that wait for the end) and [`pieces`] (bytes to be sent):
//!
//! - [`csv`], [`ndjson`], [`arrow`]: streamed, so a stack of any length takes constant memory.
//! - [`npy`], [`picasso`] ([`hdf5`] and [`zip`] are its containers): the head states the number of rows, so the packed rows are held until
//!   the end, up to a limit.
//! - [`picture`] with its [`colormap`]: rows become brightness as they arrive; the picture is made at the end.
//!
//! All output states its units, where positions count from, and the number of the first frame. In a [`Table`] the centre of the first pixel
//! is (0, 0) and frames count from 0; formats with other rules state them.

pub mod chunk;
pub mod colormap;
pub mod options;
pub mod schema;
pub mod settings;
pub mod stage;
pub mod table;

mod arrow;
mod csv;
mod hdf5;
mod held;
mod layout;
mod ndjson;
mod npy;
mod number;
mod picasso;
mod picture;
mod pieces;
mod zip;

#[cfg(test)]
mod testing;

pub use colormap::Colormap;
pub use options::{ColorBy, Columns, Keep, Options, PictureOptions, Render, Scale, Units, Words};
pub use picasso::metadata as picasso_metadata;
pub use pieces::Pieces;
pub use schema::{Astigmatism, Model, Parameter, Schema, Score, Width};
pub use settings::Settings;
pub use stage::Holds;
pub use table::{Counts, OVER_SPOTS_MAX, Status, Table};

use crate::words::named;
use bytes::Bytes;
use layout::Layout;
use std::sync::Arc;

named! {
    /// The formats that localizations are written in.
    Format {
        /// Text, a row per localization.
        Csv = "csv",
        /// A line of JSON per frame, between a head and a tail.
        Ndjson = "ndjson",
        /// The CSV that ThunderSTORM exports and imports.
        ThunderStorm = "thunderstorm",
        /// A ZIP of Picasso's HDF5 file and its YAML file.
        Picasso = "picasso",
        /// The HDF5 file alone, which includes the contents of the YAML file.
        Hdf5 = "hdf5",
        /// Arrow's IPC stream.
        Arrow = "arrow",
        /// A one-dimensional numpy array of records.
        Npy = "npy",
        /// A picture.
        Png = "png",
    }
}

impl Format {
    /// The media type of a reply.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Csv => "text/csv; charset=utf-8",
            Format::Ndjson => "application/x-ndjson",
            Format::ThunderStorm => "text/csv; charset=utf-8; profile=thunderstorm",
            Format::Picasso => "application/zip",
            Format::Hdf5 => "application/x-hdf5",
            Format::Arrow => "application/vnd.apache.arrow.stream",
            Format::Npy => "application/x-npy",
            Format::Png => "image/png",
        }
    }

    /// The file extension, without the dot.
    pub fn file_extension(self) -> &'static str {
        match self {
            Format::Csv | Format::ThunderStorm => "csv",
            Format::Ndjson => "ndjson",
            Format::Picasso => "zip",
            Format::Hdf5 => "hdf5",
            Format::Arrow => "arrows",
            Format::Npy => "npy",
            Format::Png => "png",
        }
    }

    /// Whether the caller can choose the columns; other formats have columns and units of their own.
    pub fn has_open_columns(self) -> bool {
        matches!(self, Format::Csv | Format::Ndjson | Format::Arrow | Format::Npy)
    }

    /// Whether bytes are sent with the rows. If they are all sent at the end, nothing has been sent when an error occurs on the way, so the
    /// reply can still become an error reply.
    pub fn streams(self) -> bool {
        matches!(self, Format::Csv | Format::Ndjson | Format::ThunderStorm | Format::Arrow)
    }
}

/// An encoding: turns rows into bytes.
trait Encoder: Send {
    /// Writes what precedes the rows, unless it is written with the first of them.
    fn begin(&mut self, _out: &mut Pieces) -> Result<(), String> {
        Ok(())
    }

    /// Writes rows; `first` is the number of rows written before.
    fn rows(&mut self, table: Table, first: u64, out: &mut Pieces) -> Result<(), String>;

    /// Memory that is held until the end, in bytes.
    fn holds(&self) -> usize {
        0
    }

    /// Takes a pixel size that becomes known only after all rows, if that is not too late.
    fn take_pixel_nm(&mut self, _pixel_nm: [f64; 2]) {}

    /// Returns what follows the rows.
    fn end(self: Box<Self>, counts: &Counts) -> Result<Vec<Bytes>, String>;

    /// Returns what follows the rows if the output breaks off.
    fn error(self: Box<Self>, _message: &str, _kind: &str, _counts: &Counts) -> Vec<u8> {
        Vec::new()
    }
}

/// Turns tables into the bytes of a format.
pub struct Writer {
    schema: Arc<Schema>,
    keep: Keep,
    p_min: f32,
    conventions: String,
    counts: Counts,
    encoder: Box<dyn Encoder>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("schema", &self.schema)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// A writer for a format.
    ///
    /// # Errors
    /// A schema that is inconsistent or lacks what the format needs (the pixel size, the frame size), options that the format cannot
    /// honour, and pictures above the limit.
    pub fn new(format: Format, schema: &Schema, options: &Options) -> Result<Writer, String> {
        schema.check()?;
        check_options(format, options)?;
        // Formats with open columns have one for the status.
        let keep =
            options.keep.unwrap_or(if format.has_open_columns() { Keep::All } else { Keep::Converged });
        let mut schema = schema.clone();
        let kept = [("keep", keep.name().to_owned()), ("p_min", options.p_min.to_string())];
        schema.settings.extend(kept.map(|(key, value)| (key.to_owned(), value)));
        let schema = Arc::new(schema);
        let open = || match options.columns {
            Columns::All => layout::all(&schema, options.units),
            Columns::GaussMle => layout::gaussmle(&schema),
        };
        let made = match format {
            Format::Csv => Made::of(open()?, |layout| csv::Csv::new(&schema, layout)),
            Format::ThunderStorm => {
                Made::of(layout::thunderstorm(&schema)?, |layout| csv::Csv::without_comments(&schema, layout))
            }
            Format::Ndjson => Made::of(open()?, |layout| ndjson::Ndjson::new(&schema, layout)),
            Format::Arrow => Made::of(open()?, |layout| arrow::Arrow::new(&schema, layout)),
            Format::Npy => Made::of(open()?, |layout| npy::Npy::new(&schema, layout, options.held_bytes_max)),
            Format::Picasso | Format::Hdf5 => {
                let archive = (format == Format::Picasso).then_some(options.name.as_str());
                let picasso = picasso::Picasso::new(&schema, archive, options.held_bytes_max)?;
                Made::of(layout::picasso(&schema), |_| picasso)
            }
            Format::Png => {
                let picture = picture::Picture::new(&schema, &options.picture)?;
                let conventions = picture.conventions();
                Made { conventions, encoder: Box::new(picture) }
            }
        };
        let Made { conventions, encoder } = made;
        let (p_min, counts) = (options.p_min, Counts::default());
        Ok(Writer { schema, keep, p_min, conventions, counts, encoder })
    }

    /// Units, pixel origin and frame base in one line, for a header of the reply.
    pub fn conventions(&self) -> &str {
        &self.conventions
    }

    /// The schema of its rows.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Notes which device computed rows, and the reason if it was not the intended one.
    pub fn ran_on(&mut self, device: &str, fallback: Option<&'static str>) {
        if self.counts.devices.iter().all(|known| known != device) {
            self.counts.devices.push(device.to_owned());
        }
        if let Some(fallback) = fallback.filter(|fallback| !self.counts.fallbacks.contains(fallback)) {
            self.counts.fallbacks.push(fallback);
        }
    }

    /// Appends what precedes the rows, if the format writes that before the first of them. Call it once, before all else.
    ///
    /// # Errors
    /// If the encoding fails.
    pub fn begin(&mut self, out: &mut Pieces) -> Result<(), String> {
        self.encoder.begin(out)
    }

    /// Appends the bytes of rows, if the format [streams](Format::streams).
    ///
    /// # Errors
    /// A table that does not fit the schema, more rows than may be held, numbers beyond 32 bits.
    pub fn chunk(&mut self, table: Table, out: &mut Pieces) -> Result<(), String> {
        let status = table.check(&self.schema)?;
        let mut counts = self.counts.clone();
        let mut table = if self.keep == Keep::All && self.p_min <= 0.0 {
            counts.add(&table, status, table.rows());
            table
        } else {
            let columns = || table.theta.iter().chain(&table.errors);
            let keep: Vec<bool> = (0..table.rows())
                .map(|row| {
                    self.keep.takes(table.status[row], columns().all(|column| column[row].is_finite()))
                        // NaN is not above anything.
                        && (self.p_min <= 0.0 || table.p_value[row] >= self.p_min)
                })
                .collect();
            let kept = keep.iter().filter(|kept| **kept).count();
            counts.add(&table, status, kept);
            if kept == table.rows() { table } else { table.select(&keep) }
        };
        if self.schema.first_frame > 0 {
            table.count_from(self.schema.first_frame)?;
        }
        self.encoder.rows(table, self.counts.written, out)?;
        self.counts = counts;
        Ok(())
    }

    /// Memory that it holds until the end, in bytes: rows whose number comes first, or a picture.
    pub fn holds(&self) -> usize {
        self.encoder.holds()
    }

    /// Takes the pixel size that a file states at its end, after all rows. Formats whose rows are in pixels and whose head is written last
    /// include it; in others, what was written stays as it is.
    pub fn take_pixel_nm(&mut self, pixel_nm: [f64; 2]) {
        if self.schema.pixel_nm.is_none() {
            self.encoder.take_pixel_nm(pixel_nm);
        }
    }

    /// The rest of the bytes, to be sent in order. `frames` is the number of frames, if it became known; otherwise it is the schema's, or
    /// follows from the last row.
    ///
    /// # Errors
    /// If the encoding fails.
    pub fn end(mut self, frames: Option<u32>) -> Result<Vec<Bytes>, String> {
        if let Some(frames) = frames.or(self.schema.frames) {
            self.counts.frames = frames;
        }
        self.encoder.end(&self.counts)
    }

    /// The end of an output that breaks off, after all that has been returned so far: a comment line in CSV, a line with a member `error`
    /// in NDJSON, in Arrow a message that is announced but incomplete, which readers report as an error. Empty if the format does not
    /// [stream](Format::streams), because nothing has been sent. `kind` is the `type` that errors of this kind have elsewhere.
    pub fn error(self, message: &str, kind: &str) -> Vec<u8> {
        self.encoder.error(message, kind, &self.counts)
    }
}

/// An encoder, and what the writer reports about it.
struct Made {
    conventions: String,
    encoder: Box<dyn Encoder>,
}

impl Made {
    /// From an encoder for these columns.
    fn of<E: Encoder + 'static>(layout: Layout, make: impl FnOnce(Layout) -> E) -> Made {
        Made { conventions: layout.line(), encoder: Box::new(make(layout)) }
    }
}

/// Refuses options that the format cannot honour, rather than ignoring them.
fn check_options(format: Format, options: &Options) -> Result<(), String> {
    let own_columns = format.has_open_columns();
    if !own_columns && options.columns != Columns::All {
        return Err(format!(
            "{} has columns of its own: those of gaussmle can be had as csv, ndjson, arrow or npy",
            format.name()
        ));
    }
    if options.units != Units::Auto && (!own_columns || options.columns != Columns::All) {
        let which = if own_columns { "columns of gaussmle have" } else { "format has" };
        return Err(format!("units cannot be chosen for {}: its {which} units of its own", format.name()));
    }
    if format == Format::Picasso {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+ ".contains(c);
        let length = options.name.len();
        if !(1..=100).contains(&length) || options.name.starts_with('.') || !options.name.chars().all(plain) {
            return Err(format!(
                "the file name {:?} is not of 1 to 100 letters, digits, spaces and -_.+, or starts with a dot",
                options.name
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{testing::*, *};

    #[test]
    fn frames_go_on_from_those_of_another_file_in_every_format() {
        let (plain, later) = (square(Model::Xynb), Schema { first_frame: 1500, ..square(Model::Xynb) });
        let rows = table(&plain, 4);
        let text = |format| written(format, &later, &Options::default(), &[&rows]);
        let csv = text(Format::Csv);
        let first = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
            lines.map(|line| line.split(',').next().unwrap().to_owned()).collect()
        };
        assert_eq!(first(&csv), ["1500", "1500", "1500", "1501"]);
        assert!(csv.contains("first_frame 1500"), "{csv}");
        let columns = Options { columns: Columns::GaussMle, ..Options::default() };
        let gaussmle = written(Format::Csv, &later, &columns, &[&rows]);
        assert!(gaussmle.contains(",1502,") && !gaussmle.contains(",1500,"), "{gaussmle}");
        let storm = text(Format::ThunderStorm);
        assert!(storm.lines().nth(1).unwrap().starts_with("1,1501,"), "{storm}");
        let ndjson = text(Format::Ndjson);
        assert!(ndjson.contains("\"first_frame\":1500") && ndjson.contains("{\"frame\":1501,"), "{ndjson}");
        // The counts are those of this file alone. Picasso's number of frames includes earlier ones, or its programs would drop rows.
        assert!(ndjson.contains("\"frames\":2"), "{ndjson}");
        let bytes = bytes(Format::Hdf5, &later, &Options::default(), &[&rows]);
        assert!(String::from_utf8_lossy(&bytes).contains("\"Frames\":1502"));

        let last = Schema { first_frame: u32::MAX, ..plain };
        let mut writer = Writer::new(Format::Csv, &last, &Options::default()).unwrap();
        let error = writer.chunk(rows, &mut Pieces::default()).unwrap_err();
        assert_eq!(error, "frame 1, counted from first_frame=4294967295, does not fit into 32 bits");
    }

    #[test]
    fn formats_without_a_status_keep_only_what_converged() {
        let schema = square(Model::Xynbs);
        let mut table = table(&schema, 6);
        table.status = vec![0, 1, 2, 3, 4, 0];
        table.theta[0][5] = f32::NAN;
        for (format, keep, expected) in [
            (Format::Csv, None, 6),
            (Format::ThunderStorm, None, 1),
            (Format::Picasso, None, 1),
            (Format::Png, None, 1),
            (Format::Csv, Some(Keep::Converged), 1),
            (Format::Hdf5, Some(Keep::Finite), 5),
        ] {
            let options = Options { keep, ..Options::default() };
            let mut writer = Writer::new(format, &schema, &options).unwrap();
            writer.chunk(table.clone(), &mut Pieces::default()).unwrap();
            assert_eq!(writer.counts().written, expected, "{}", format.name());
            assert_eq!(writer.counts().status, [2, 1, 1, 1, 1]);
        }
    }

    #[test]
    fn fits_below_p_min_are_left_out_of_every_format_and_counted() {
        let schema = square(Model::Xynbs);
        let mut table = table(&schema, 4);
        table.p_value = vec![0.2, 0.01, f32::NAN, 0.009];
        for format in Format::ALL {
            for (p_min, expected) in [(0.0, 4), (0.01, 2), (0.5, 0)] {
                let options = Options { p_min, ..Options::default() };
                let mut writer = Writer::new(format, &schema, &options).unwrap();
                let mut out = Pieces::default();
                writer.begin(&mut out).unwrap();
                writer.chunk(table.clone(), &mut out).unwrap();
                let Counts { rows, written, .. } = *writer.counts();
                assert_eq!((rows, written), (4, expected), "{} {p_min}", format.name());
            }
        }
    }

    #[test]
    fn what_a_format_cannot_meet_is_refused() {
        let check = |format, options: Options, expected: &str| {
            let error = Writer::new(format, &schema(Model::Xynb), &options).unwrap_err();
            assert_eq!(error, expected);
        };
        let gaussmle = Options { columns: Columns::GaussMle, ..Options::default() };
        check(
            Format::Hdf5,
            gaussmle.clone(),
            "hdf5 has columns of its own: those of gaussmle can be had as csv, ndjson, arrow or npy",
        );
        check(
            Format::Csv,
            Options { units: Units::Pixels, ..gaussmle },
            "units cannot be chosen for csv: its columns of gaussmle have units of its own",
        );
        check(
            Format::ThunderStorm,
            Options { units: Units::Pixels, ..Options::default() },
            "units cannot be chosen for thunderstorm: its format has units of its own",
        );
        let named = |name: &str| Options { name: name.to_owned(), ..Options::default() };
        for name in ["", "../x", "a/b", ".hidden", "a\nb"] {
            assert!(Writer::new(Format::Picasso, &square(Model::Xynb), &named(name)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn tables_of_another_shape_are_refused() {
        let schema = schema(Model::Xynb);
        let mut short = table(&schema, 3);
        short.p_value.pop();
        let mut coded = table(&schema, 3);
        coded.status[1] = 9;
        for (table, expected) in [
            (short, "a column of p_value has 2 rows, expected 3"),
            (coded, "status 9 is unknown, expected 0 to 4"),
            (
                table(&testing::schema(Model::Xynbs), 3),
                "a table of model xynb has 5 columns of parameters, expected 4",
            ),
        ] {
            let mut writer = Writer::new(Format::Csv, &schema, &Options::default()).unwrap();
            assert_eq!(writer.chunk(table, &mut Pieces::default()).unwrap_err(), expected);
        }
    }
}
