//! The lists of columns for each kind of output.

use super::{Column, Kind, Layout, Origin, Source};
use crate::tasks::localize::{
    options::Units,
    schema::{Model, Parameter, Schema, Score},
};

/// Half a pixel: from the centre of the first pixel to its outer corner.
const HALF: f64 = 0.5;

fn column(name: impl Into<String>, unit: &'static str, kind: Kind, source: Source) -> Column {
    Column { name: name.into(), unit, kind, source, scale: 1.0, offset: 0.0 }
}

impl Column {
    fn times(mut self, scale: f64) -> Column {
        self.scale = scale;
        self
    }

    fn plus(mut self, offset: f64) -> Column {
        self.offset = offset;
        self
    }
}

/// A system of units: what a pixel along x and y and a micrometre of z are in it.
struct System {
    lateral: &'static str,
    lateral_squared: &'static str,
    axial: &'static str,
    lateral_axial: &'static str,
    pixel: [f64; 2],
    micrometer: f64,
}

impl System {
    const PIXELS: System = System {
        lateral: "px",
        lateral_squared: "px2",
        axial: "um",
        lateral_axial: "px_um",
        pixel: [1.0, 1.0],
        micrometer: 1.0,
    };

    fn nanometers(pixel: [f64; 2]) -> System {
        System {
            lateral: "nm",
            lateral_squared: "nm2",
            axial: "nm",
            lateral_axial: "nm2",
            pixel,
            micrometer: 1e3,
        }
    }

    fn micrometers(pixel_nm: [f64; 2]) -> System {
        System {
            lateral: "um",
            lateral_squared: "um2",
            axial: "um",
            lateral_axial: "um2",
            pixel: pixel_nm.map(|nm| nm / 1e3),
            micrometer: 1.0,
        }
    }

    /// The unit of a parameter, and the factor from the table's unit to it.
    fn of(&self, parameter: Parameter) -> (&'static str, f64) {
        match parameter {
            Parameter::X | Parameter::Sigma | Parameter::SigmaX => (self.lateral, self.pixel[0]),
            Parameter::Y | Parameter::SigmaY => (self.lateral, self.pixel[1]),
            Parameter::Z => (self.axial, self.micrometer),
            Parameter::Photons => ("photons", 1.0),
            Parameter::Background => ("photons/px", 1.0),
        }
    }

    fn of_pair(&self, pair: [Parameter; 2]) -> (&'static str, f64) {
        let unit = if pair.contains(&Parameter::Z) { self.lateral_axial } else { self.lateral_squared };
        (unit, self.of(pair[0]).1 * self.of(pair[1]).1)
    }
}

/// A name with its unit, which photons omit.
fn with_unit(name: &str, unit: &str) -> String {
    if unit.starts_with("photons") { name.to_owned() } else { format!("{name}_{unit}") }
}

/// Our own columns: everything, with units in the names.
pub(in super::super) fn all(schema: &Schema, units: Units) -> Result<Layout, String> {
    let system = match (units, schema.pixel_nm) {
        (Units::Pixels, _) | (Units::Auto, None) => System::PIXELS,
        (Units::Auto, Some(pixel)) => System::nanometers(pixel),
        (Units::Nanometers, _) => System::nanometers(schema.need_pixel_nm("nm as the unit")?),
    };
    let model = schema.model;
    let mut columns = vec![column("frame", "", Kind::U32, Source::Frame)];
    for (index, parameter) in model.parameters().iter().enumerate() {
        let (unit, scale) = system.of(*parameter);
        let name = with_unit(parameter.name(), unit);
        columns.push(column(name, unit, Kind::F32, Source::Theta(index)).times(scale));
    }
    for (index, parameter) in model.parameters().iter().enumerate() {
        let (unit, scale) = system.of(*parameter);
        let name = with_unit(&format!("{}_error", parameter.name()), unit);
        columns.push(column(name, unit, Kind::F32, Source::Error(index)).times(scale));
    }
    for (index, pair) in model.covariances().iter().enumerate() {
        let (unit, scale) = system.of_pair(*pair);
        let name = with_unit(&format!("{}{}_covariance", pair[0].name(), pair[1].name()), unit);
        columns.push(column(name, unit, Kind::F32, Source::Covariance(index)).times(scale));
    }
    columns.extend([
        column("log_likelihood_ratio", "", Kind::F32, Source::LogLikelihoodRatio),
        column("p_value", "", Kind::F32, Source::PValue),
        column("iterations", "", Kind::U8, Source::Iterations),
        column("status", "", Kind::U8, Source::Status),
    ]);
    match schema.score {
        Some(Score::NetGradient) => columns.push(column("net_gradient", "", Kind::F32, Source::Score)),
        Some(Score::DifferenceOfGaussians | Score::MultipleOfNoise) => {
            columns.push(column("detection_score", "", Kind::F32, Source::Score));
        }
        None => (),
    }
    Ok(Layout { columns, origin: Origin::Center, frame_base: 0, has_status: true })
}

/// The fields of GaussMLE.jl's emitters, with their names and in their order; then the status, which GaussMLE.jl does not have.
pub(in super::super) fn gaussmle(schema: &Schema) -> Result<Layout, String> {
    let pixel_nm = schema.need_pixel_nm("a table with the columns of gaussmle")?;
    let system = System::micrometers(pixel_nm);
    let model = schema.model;
    let half = |parameter: Parameter| match parameter {
        Parameter::X => HALF * system.pixel[0],
        Parameter::Y => HALF * system.pixel[1],
        _ => 0.0,
    };
    let name = |parameter: Parameter| match parameter {
        Parameter::Background => "bg",
        Parameter::Sigma => "σ",
        Parameter::SigmaX => "σx",
        Parameter::SigmaY => "σy",
        other => other.name(),
    };
    let is_position = |p: Parameter| matches!(p, Parameter::X | Parameter::Y | Parameter::Z);
    let mut columns = Vec::new();
    for (index, parameter) in model.parameters().iter().enumerate() {
        let (unit, scale) = system.of(*parameter);
        let value = column(name(*parameter), unit, Kind::F32, Source::Theta(index));
        columns.push(value.times(scale).plus(half(*parameter)));
    }
    let error = |index: usize, parameter: Parameter| {
        let (unit, scale) = system.of(parameter);
        column(format!("σ_{}", name(parameter)), unit, Kind::F32, Source::Error(index)).times(scale)
    };
    let errors: Vec<(usize, Parameter)> = model.parameters().iter().copied().enumerate().collect();
    columns.extend(errors.iter().filter(|(_, p)| is_position(*p)).map(|(index, p)| error(*index, *p)));
    for (index, pair) in model.covariances().iter().enumerate() {
        let (unit, scale) = system.of_pair(*pair);
        let name = format!("σ_{}{}", name(pair[0]), name(pair[1]));
        columns.push(column(name, unit, Kind::F32, Source::Covariance(index)).times(scale));
    }
    columns.extend(errors.iter().filter(|(_, p)| !is_position(*p)).map(|(index, p)| error(*index, *p)));
    columns.extend([
        column("pvalue", "", Kind::F32, Source::PValue),
        column("frame", "", Kind::U32, Source::Frame).plus(1.0),
        column("dataset", "", Kind::U32, Source::Constant).plus(1.0),
        column("track_id", "", Kind::U32, Source::Constant),
        column("id", "", Kind::U32, Source::Row).plus(1.0),
        column("status", "", Kind::U8, Source::Status),
    ]);
    Ok(Layout { columns, origin: Origin::Corner, frame_base: 1, has_status: true })
}

/// ThunderSTORM's table. Readers that know only one width find the mean of two widths under its name.
pub(in super::super) fn thunderstorm(schema: &Schema) -> Result<Layout, String> {
    let pixel = schema.need_pixel_nm("ThunderSTORM's table")?;
    let model = schema.model;
    let place = |parameter| model.index(parameter).map(Source::Theta);
    let mut columns = vec![
        column("id", "", Kind::U32, Source::Row).plus(1.0),
        column("frame", "", Kind::U32, Source::Frame).plus(1.0),
        column("x [nm]", "nm", Kind::F32, Source::Theta(0)).times(pixel[0]).plus(HALF * pixel[0]),
        column("y [nm]", "nm", Kind::F32, Source::Theta(1)).times(pixel[1]).plus(HALF * pixel[1]),
    ];
    if let Some(z) = place(Parameter::Z) {
        columns.push(column("z [nm]", "nm", Kind::F32, z).times(1e3));
    } else {
        columns.push(column("sigma [nm]", "nm", Kind::F32, Source::WidthMean(pixel)));
    }
    if matches!(model, Model::Xynbsxsy | Model::Xyznb) {
        columns.push(column("sigma1 [nm]", "nm", Kind::F32, Source::Width(0)).times(pixel[0]));
        columns.push(column("sigma2 [nm]", "nm", Kind::F32, Source::Width(1)).times(pixel[1]));
    }
    let photons = [("intensity [photon]", Parameter::Photons), ("offset [photon]", Parameter::Background)];
    for (name, parameter) in photons {
        columns.extend(place(parameter).map(|source| column(name, "photons", Kind::F32, source)));
    }
    columns.push(column("bkgstd [photon]", "photons", Kind::F32, Source::BackgroundNoise));
    columns.push(column("uncertainty_xy [nm]", "nm", Kind::F32, Source::ErrorXY(pixel)));
    if let Some(z) = model.index(Parameter::Z) {
        columns.push(column("uncertainty_z [nm]", "nm", Kind::F32, Source::Error(z)).times(1e3));
    }
    columns.push(column("p_value", "", Kind::F32, Source::PValue));
    Ok(Layout { columns, origin: Origin::Corner, frame_base: 1, has_status: false })
}

/// The columns that Picasso's tools read: positions, widths and their errors in px, z in nm.
pub(in super::super) fn picasso(schema: &Schema) -> Layout {
    let model = schema.model;
    let theta = |name: &str, unit, parameter| {
        model.index(parameter).map(|index| column(name, unit, Kind::F32, Source::Theta(index)))
    };
    let error = |name: &str, unit, parameter| {
        model.index(parameter).map(|index| column(name, unit, Kind::F32, Source::Error(index)))
    };
    let mut columns = vec![
        column("frame", "", Kind::U32, Source::Frame),
        column("x", "px", Kind::F32, Source::Theta(0)),
        column("y", "px", Kind::F32, Source::Theta(1)),
    ];
    columns.extend(theta("z", "nm", Parameter::Z).map(|z| z.times(1e3)));
    columns.extend(theta("photons", "photons", Parameter::Photons));
    columns.push(column("sx", "px", Kind::F32, Source::Width(0)));
    columns.push(column("sy", "px", Kind::F32, Source::Width(1)));
    columns.extend(theta("bg", "photons/px", Parameter::Background));
    columns.push(column("lpx", "px", Kind::F32, Source::Error(0)));
    columns.push(column("lpy", "px", Kind::F32, Source::Error(1)));
    columns.extend(error("lpz", "nm", Parameter::Z).map(|z| z.times(1e3)));
    if matches!(model, Model::Xynbsxsy | Model::Xyznb) {
        columns.push(column("ellipticity", "", Kind::F32, Source::Ellipticity));
    }
    if schema.score == Some(Score::NetGradient) {
        columns.push(column("net_gradient", "", Kind::F32, Source::Score));
    }
    columns.extend([
        column("log_likelihood", "", Kind::F32, Source::LogLikelihoodRatio),
        column("iterations", "", Kind::U32, Source::Iterations),
    ]);
    columns.extend(error("photons_unc", "photons", Parameter::Photons));
    columns.extend(error("bg_unc", "photons/px", Parameter::Background));
    for (x, y) in [(Parameter::SigmaX, Parameter::SigmaY), (Parameter::Sigma, Parameter::Sigma)] {
        columns.extend(error("sx_unc", "px", x));
        columns.extend(error("sy_unc", "px", y));
    }
    columns.push(column("p_value", "", Kind::F32, Source::PValue));
    Layout { columns, origin: Origin::Center, frame_base: 0, has_status: false }
}
