//! A small table whose numbers are easy to follow, for the tests of the formats.

use super::*;

pub(super) const ASTIGMATISM: Astigmatism =
    Astigmatism { sigma_px: [1.3, 1.3], gamma_um: 0.25, depth_um: 0.4, a: [0.0, 0.0], b: [0.0, 0.0] };

/// Frames of 64 x 48 pixels of 100 x 120 nm.
pub(super) fn schema(model: Model) -> Schema {
    let width = match model {
        Model::Xynb => Width::Fixed([1.3, 1.25]),
        Model::Xyznb => Width::Astigmatic(ASTIGMATISM),
        _ => Width::Fitted,
    };
    Schema {
        pixel_nm: Some([100.0, 120.0]),
        frame_size: Some([64, 48]),
        notes: vec![("camera".to_owned(), "test".to_owned())],
        ..Schema::new(model, width).unwrap()
    }
}

/// The same with pixels of 100 x 100 nm.
pub(super) fn square(model: Model) -> Schema {
    Schema { pixel_nm: Some([100.0, 100.0]), ..schema(model) }
}

/// Rows on a diagonal, three to a frame.
pub(super) fn table(schema: &Schema, rows: usize) -> Table {
    let each = |value: &dyn Fn(usize) -> f32| -> Vec<f32> { (0..rows).map(value).collect() };
    let theta = |parameter: &Parameter| match parameter {
        Parameter::X => each(&|row| 10.5 + row as f32),
        Parameter::Y => each(&|row| 20.5 + row as f32),
        Parameter::Z => each(&|row| 0.1 * (row + 1) as f32),
        Parameter::Photons => each(&|row| 1000.0 + row as f32),
        Parameter::Background => each(&|_| 10.0),
        Parameter::Sigma | Parameter::SigmaX => each(&|_| 1.4),
        Parameter::SigmaY => each(&|_| 1.2),
    };
    let error = |parameter: &Parameter| match parameter {
        Parameter::X => each(&|_| 0.05),
        Parameter::Y => each(&|_| 0.055),
        Parameter::Z => each(&|_| 0.03),
        Parameter::Photons => each(&|_| 40.0),
        Parameter::Background => each(&|_| 0.5),
        _ => each(&|_| 0.03125),
    };
    let parameters = schema.model.parameters();
    Table {
        frame: (0..rows).map(|row| row as u32 / 3).collect(),
        theta: parameters.iter().map(theta).collect(),
        errors: parameters.iter().map(error).collect(),
        covariances: schema.model.covariances().iter().map(|_| each(&|_| 0.0009765625)).collect(),
        log_likelihood_ratio: each(&|_| -20.0),
        p_value: each(&|_| 0.5),
        iterations: vec![5; rows],
        status: vec![0; rows],
        score: if schema.score.is_some() { each(&|row| 300.0 + row as f32) } else { Vec::new() },
        over_spots_max: 0,
    }
}

/// All bytes of an output.
pub(super) fn bytes(format: Format, schema: &Schema, options: &Options, tables: &[&Table]) -> Vec<u8> {
    let mut writer = Writer::new(format, schema, options).unwrap();
    let mut out = Pieces::default();
    writer.begin(&mut out).unwrap();
    for table in tables {
        writer.chunk((*table).clone(), &mut out).unwrap();
    }
    let mut out = out.into_vec();
    out.extend(writer.end(None).unwrap());
    out.concat()
}

/// An output of as many rows as each chunk has, which breaks off.
pub(super) fn broken_off(format: Format, schema: &Schema, chunks: &[usize], message: &str) -> Vec<u8> {
    let mut writer = Writer::new(format, schema, &Options::default()).unwrap();
    let mut out = Pieces::default();
    writer.begin(&mut out).unwrap();
    for rows in chunks {
        writer.chunk(table(schema, *rows), &mut out).unwrap();
    }
    let mut out = out.into_vec();
    out.push(writer.error(message, "/docs/errors#not-an-image").into());
    out.concat()
}

/// All of an output that is text.
pub(super) fn written(format: Format, schema: &Schema, options: &Options, tables: &[&Table]) -> String {
    String::from_utf8(bytes(format, schema, options, tables)).unwrap()
}
