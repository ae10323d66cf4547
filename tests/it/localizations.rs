//! Writes localizations in every format to files, which `tests/clients/test_localizations.py` reads with the libraries
//! of others. Both sides know the rows by the same formulas.

use ocelli::tasks::localize::{
    Astigmatism, ColorBy, Colormap, Columns, Format, Model, Options, Parameter, PictureOptions, Pieces,
    Render, Scale, Schema, Score, Table, Width, Writer,
};
use std::{fs, path::PathBuf};

const ROWS: usize = 2500;
const ROWS_PER_CHUNK: usize = 400;

fn schema(model: Model) -> Schema {
    let astigmatism =
        Astigmatism { sigma_px: [1.3, 1.3], gamma_um: 0.25, depth_um: 0.4, a: [0.05, 0.05], b: [0.01, 0.01] };
    let width = match model {
        Model::Xynb => Width::Fixed([1.3, 1.3]),
        Model::Xyznb => Width::Astigmatic(astigmatism),
        _ => Width::Fitted,
    };
    Schema {
        pixel_nm: Some([108.0, 108.0]),
        frame_size: Some([80, 60]),
        frames: Some(600),
        score: (model != Model::Xyznb).then_some(Score::NetGradient),
        notes: vec![("camera".to_owned(), "a camera, µ".to_owned())],
        ..Schema::new(model, width).unwrap()
    }
}

/// Rows `first` and following. Every fiftieth fit is singular, without numbers; others of the tenth stopped early.
fn table(schema: &Schema, first: usize, rows: usize) -> Table {
    let column = |value: &dyn Fn(f64) -> f64, may_fail: bool| -> Vec<f32> {
        (first..first + rows)
            .map(|row| if may_fail && row % 50 == 49 { f32::NAN } else { value(row as f64) as f32 })
            .collect()
    };
    let theta = |parameter: &Parameter| match parameter {
        Parameter::X => column(&|row| row * 37.0 % 601.0 / 10.0 + 5.25, false),
        Parameter::Y => column(&|row| row * 53.0 % 401.0 / 10.0 + 5.5, false),
        Parameter::Z => column(&|row| row * 7.0 % 101.0 / 101.0 - 0.5, false),
        Parameter::Photons => column(&|row| 500.0 + row * 11.0 % 997.0, false),
        Parameter::Background => column(&|row| 5.0 + row % 7.0, false),
        Parameter::Sigma | Parameter::SigmaX => column(&|row| 1.1 + row % 5.0 / 10.0, false),
        Parameter::SigmaY => column(&|row| 1.0 + row % 3.0 / 10.0, false),
    };
    let error = |parameter: &Parameter| match parameter {
        Parameter::X => column(&|row| 0.05 + row % 9.0 / 100.0, true),
        Parameter::Y => column(&|row| 0.06 + row % 8.0 / 100.0, true),
        _ => column(&|row| 0.5 + row % 4.0 / 10.0, true),
    };
    let parameters = schema.model.parameters();
    Table {
        frame: (first..first + rows).map(|row| row as u32 / 5).collect(),
        theta: parameters.iter().map(theta).collect(),
        errors: parameters.iter().map(error).collect(),
        covariances: schema.model.covariances().iter().map(|_| column(&|row| row / 1e6, true)).collect(),
        log_likelihood_ratio: column(&|row| -10.0 - row % 31.0, false),
        p_value: column(&|row| row % 100.0 / 100.0, false),
        iterations: (first..first + rows).map(|row| (3 + row % 6) as u8).collect(),
        status: (first..first + rows)
            .map(|row| match row {
                _ if row % 50 == 49 => 3,
                _ if row % 10 == 9 => 1,
                _ => 0,
            })
            .collect(),
        score: if schema.score.is_some() { column(&|row| 300.0 + row, false) } else { Vec::new() },
        over_spots_max: 0,
    }
}

fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("localizations");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a file of that many rows, ended by an error where there is one.
fn write(
    name: &str,
    format: Format,
    schema: &Schema,
    options: &Options,
    rows: usize,
    error: Option<&str>,
) -> Vec<u8> {
    let mut writer = Writer::new(format, schema, options).unwrap();
    let mut out = Pieces::default();
    writer.begin(&mut out).unwrap();
    let mut bytes = out.into_vec().concat();
    for first in (0..rows).step_by(ROWS_PER_CHUNK) {
        let mut out = Pieces::default();
        writer.chunk(table(schema, first, ROWS_PER_CHUNK.min(rows - first)), &mut out).unwrap();
        let pieces = out.into_vec();
        assert_eq!(!pieces.is_empty(), format.streams(), "{name}");
        bytes.extend(pieces.concat());
    }
    assert_eq!(writer.counts().rows, rows as u64);
    match error {
        Some(error) => bytes.extend(writer.error(error, "/docs/errors#not-an-image")),
        None => bytes.extend(writer.end(None).unwrap().concat()),
    }
    fs::write(folder().join(name), &bytes).unwrap();
    bytes
}

#[test]
fn every_model_is_written_in_every_format() {
    for model in Model::ALL {
        let schema = schema(model);
        for format in Format::ALL {
            let options = Options { name: format!("spots-{}", model.name()), ..Options::default() };
            let name =
                |kind: &str| format!("{}{kind}.{}.{}", model.name(), format.name(), format.file_extension());
            let bytes = write(&name(""), format, &schema, &options, ROWS, None);
            assert!(!bytes.is_empty());
            write(&name("-empty"), format, &schema, &options, 0, None);
        }
    }
}

#[test]
fn columns_of_gaussmle_are_written_in_every_open_format() {
    for model in Model::ALL {
        let options = Options { columns: Columns::GaussMle, ..Options::default() };
        for format in [Format::Csv, Format::Ndjson, Format::Arrow, Format::Npy] {
            let name = format!("{}-gaussmle.{}.{}", model.name(), format.name(), format.file_extension());
            write(&name, format, &schema(model), &options, ROWS, None);
        }
    }
}

#[test]
fn outputs_that_break_off_say_so() {
    for format in [Format::Csv, Format::Ndjson, Format::Arrow] {
        let name = format!("broken.{}.{}", format.name(), format.file_extension());
        write(
            &name,
            format,
            &schema(Model::Xynb),
            &Options::default(),
            800,
            Some("page 161 of the stack is cut off"),
        );
    }
}

#[test]
fn pictures_are_drawn_in_their_ways() {
    let base = PictureOptions { white_percentile: 100.0, ..PictureOptions::default() };
    for (name, picture) in [
        (
            "picture-histogram.png",
            PictureOptions {
                render: Render::Histogram,
                scale: Scale::PerPixel(1.0),
                colormap: Colormap::Gray,
                ..base
            },
        ),
        (
            "picture-blur.png",
            PictureOptions { scale: Scale::Nanometers(27.0), colormap: Colormap::Gray, ..base },
        ),
        ("picture-hot.png", PictureOptions { scale: Scale::Nanometers(13.5), ..base }),
        ("picture-viridis.png", PictureOptions { colormap: Colormap::Viridis, ..PictureOptions::default() }),
        ("picture-z.png", PictureOptions { color_by: ColorBy::Z(None), ..PictureOptions::default() }),
    ] {
        let options = Options { picture, ..Options::default() };
        write(name, Format::Png, &schema(Model::Xyznb), &options, ROWS, None);
    }
}
