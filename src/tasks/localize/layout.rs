//! Columns: which values of a table are written, with their names, units and origin.
//!
//! Every format except the picture is a list of columns and an encoding. [`all`] and [`gaussmle`] are available in any encoding;
//! [`thunderstorm`] and [`picasso`] belong to one file format each.

mod lists;

pub(super) use lists::{all, gaussmle, picasso, thunderstorm};

use super::{
    schema::{Parameter, Schema, Width},
    table::Table,
};
use std::mem::take;

/// The origin of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The centre of the first pixel is (0, 0).
    Center,
    /// The outer corner of the first pixel is (0, 0).
    Corner,
}

impl Origin {
    /// A sentence for the heads of files.
    pub(super) fn words(self) -> &'static str {
        match self {
            Origin::Center => "the center of the first pixel is (0, 0)",
            Origin::Corner => "the outer corner of the first pixel is (0, 0)",
        }
    }
}

/// The type that a column is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    U32,
    F32,
}

impl Kind {
    /// Bytes of a value.
    pub(super) fn size(self) -> usize {
        match self {
            Kind::U8 => 1,
            Kind::U32 | Kind::F32 => 4,
        }
    }
}

/// The source of a column's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Source {
    /// Index of the row among those written, from 0.
    Row,
    Frame,
    /// A parameter, by its index in the table.
    Theta(usize),
    /// A standard error.
    Error(usize),
    Covariance(usize),
    /// Root mean square of the standard errors of x and y, each multiplied by its factor.
    ErrorXY([f64; 2]),
    /// Width of the spot along x (0) or y (1), px.
    Width(usize),
    /// Geometric mean of the widths, each multiplied by its factor.
    WidthMean([f64; 2]),
    /// How much the widths differ: 0 is round.
    Ellipticity,
    /// Standard deviation of the background's photons in a pixel.
    BackgroundNoise,
    LogLikelihoodRatio,
    PValue,
    Iterations,
    Status,
    Score,
    Constant,
}

/// A column of the output: `value * scale + offset` of its source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    pub(super) name: String,
    /// Empty if there is none.
    pub(super) unit: &'static str,
    pub(super) kind: Kind,
    pub(super) source: Source,
    pub(super) scale: f64,
    pub(super) offset: f64,
}

/// The columns of a format, and the origins of its positions and frames.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    pub(super) columns: Vec<Column>,
    pub(super) origin: Origin,
    /// Number of the first frame.
    pub(super) frame_base: u32,
    /// Whether a column says how each fit ended.
    pub(super) has_status: bool,
}

/// The values of a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Values {
    U8(Vec<u8>),
    U32(Vec<u32>),
    F32(Vec<f32>),
}

impl Column {
    /// The values for a table whose first row has index `first` among all rows that are written.
    ///
    /// # Errors
    /// If an integer does not fit into the 32 bits of its column.
    pub(super) fn values(&self, schema: &Schema, table: &Table, first: u64) -> Result<Values, String> {
        Ok(match self.kind {
            Kind::U8 => Values::U8(self.small(table)),
            Kind::U32 => Values::U32(self.whole(table, first)?),
            Kind::F32 => Values::F32(self.real(schema, table)),
        })
    }

    /// Whether the table holds the column's values unchanged.
    fn is_stored(&self) -> bool {
        let stored = match self.kind {
            Kind::U8 => matches!(self.source, Source::Iterations | Source::Status),
            Kind::U32 => matches!(self.source, Source::Frame),
            Kind::F32 => matches!(
                self.source,
                Source::Theta(_)
                    | Source::Error(_)
                    | Source::Covariance(_)
                    | Source::LogLikelihoodRatio
                    | Source::PValue
                    | Source::Score
            ),
        };
        stored && (self.scale, self.offset) == (1.0, 0.0)
    }

    /// Like [`Column::values`] for a column that [is stored](Column::is_stored), but moves the values out of the table.
    fn take(&self, table: &mut Table) -> Values {
        match self.source {
            Source::Frame => Values::U32(take(&mut table.frame)),
            Source::Iterations => Values::U8(take(&mut table.iterations)),
            Source::Status => Values::U8(take(&mut table.status)),
            Source::Theta(index) => Values::F32(take(&mut table.theta[index])),
            Source::Error(index) => Values::F32(take(&mut table.errors[index])),
            Source::Covariance(index) => Values::F32(take(&mut table.covariances[index])),
            Source::LogLikelihoodRatio => Values::F32(take(&mut table.log_likelihood_ratio)),
            Source::PValue => Values::F32(take(&mut table.p_value)),
            Source::Score => Values::F32(take(&mut table.score)),
            source => unreachable!("{source:?} is stored nowhere"),
        }
    }

    fn small(&self, table: &Table) -> Vec<u8> {
        match self.source {
            Source::Iterations => table.iterations.clone(),
            Source::Status => table.status.clone(),
            source => unreachable!("{source:?} is no column of bytes"),
        }
    }

    fn whole(&self, table: &Table, first: u64) -> Result<Vec<u32>, String> {
        let offset = self.offset as u64;
        let number = |value: u64| {
            u32::try_from(value + offset)
                .map_err(|_| format!("{} {} does not fit into 32 bits", self.name, value + offset))
        };
        match self.source {
            Source::Row => (0..table.rows() as u64).map(|row| number(first + row)).collect(),
            Source::Frame => table.frame.iter().map(|frame| number(u64::from(*frame))).collect(),
            Source::Iterations => table.iterations.iter().map(|n| number(u64::from(*n))).collect(),
            Source::Constant => (0..table.rows()).map(|_| number(0)).collect(),
            source => unreachable!("{source:?} is no column of whole numbers"),
        }
    }

    fn real(&self, schema: &Schema, table: &Table) -> Vec<f32> {
        let [scale, offset] = [self.scale, self.offset];
        let column = |values: &[f32]| -> Vec<f32> {
            if self.is_stored() {
                return values.to_vec();
            }
            // In double precision, so that converting units costs no digits.
            values.iter().map(|value| (f64::from(*value) * scale + offset) as f32).collect()
        };
        let each = |value: &dyn Fn(usize) -> f64| -> Vec<f32> {
            (0..table.rows()).map(|row| (value(row) * scale + offset) as f32).collect()
        };
        match self.source {
            Source::Theta(index) => column(&table.theta[index]),
            Source::Error(index) => column(&table.errors[index]),
            Source::Covariance(index) => column(&table.covariances[index]),
            Source::ErrorXY(factors) => each(&|row| {
                let [x, y] = [0, 1].map(|axis| f64::from(table.errors[axis][row]) * factors[axis]);
                ((x * x + y * y) / 2.0).sqrt()
            }),
            Source::Width(axis) => each(&|row| widths(schema, table, row)[axis]),
            Source::WidthMean(factors) => each(&|row| {
                let [x, y] = widths(schema, table, row);
                (x * factors[0] * y * factors[1]).sqrt()
            }),
            Source::Ellipticity => each(&|row| {
                let [x, y] = widths(schema, table, row);
                (x - y).abs() / x.max(y)
            }),
            Source::BackgroundNoise => match schema.model.index(Parameter::Background) {
                Some(index) => {
                    let excess = f64::from(schema.excess_noise);
                    // Not `max`, by which NaN would be 0.
                    each(&|row| {
                        (excess * f64::from(table.theta[index][row])).clamp(0.0, f64::INFINITY).sqrt()
                    })
                }
                None => vec![f32::NAN; table.rows()],
            },
            Source::LogLikelihoodRatio => column(&table.log_likelihood_ratio),
            Source::PValue => column(&table.p_value),
            Source::Score => column(&table.score),
            source => unreachable!("{source:?} is no column of real numbers"),
        }
    }
}

/// The widths of a spot along x and y, px.
fn widths(schema: &Schema, table: &Table, row: usize) -> [f64; 2] {
    let fitted = |parameter| schema.model.index(parameter).map(|index| table.theta[index][row]);
    let sigma = match schema.width {
        Width::Fixed(sigma) => sigma,
        Width::Astigmatic(astigmatism) => astigmatism.sigma_px(fitted(Parameter::Z).unwrap_or(f32::NAN)),
        Width::Fitted => {
            let round = fitted(Parameter::Sigma).unwrap_or(f32::NAN);
            [fitted(Parameter::SigmaX).unwrap_or(round), fitted(Parameter::SigmaY).unwrap_or(round)]
        }
    };
    sigma.map(f64::from)
}

impl Layout {
    /// Bytes of a row, packed.
    pub(super) fn row_size(&self) -> usize {
        self.columns.iter().map(|column| column.kind.size()).sum()
    }

    /// The values of all columns, for a table whose first row has index `first` among all rows that are written. Columns that are written
    /// unchanged are not copied.
    ///
    /// # Errors
    /// As [`Column::values`].
    pub(super) fn values(
        &self,
        schema: &Schema,
        mut table: Table,
        first: u64,
    ) -> Result<Vec<Values>, String> {
        let again = |at: usize, column: &Column| {
            self.columns[at + 1..].iter().any(|later| later.is_stored() && later.source == column.source)
        };
        let made = self.columns.iter().enumerate().map(|(at, column)| match column.is_stored() {
            true if !again(at, column) => Ok(None),
            _ => column.values(schema, &table, first).map(Some),
        });
        let made = made.collect::<Result<Vec<Option<Values>>, String>>()?;
        // Taken only after the other columns are made, because those may be computed from them.
        let taken = self.columns.iter().zip(made);
        Ok(taken.map(|(column, made)| made.unwrap_or_else(|| column.take(&mut table))).collect())
    }

    /// The rows of a table, packed and little-endian, one after the other.
    ///
    /// # Errors
    /// As [`Column::values`].
    pub(super) fn pack(&self, schema: &Schema, table: Table, first: u64) -> Result<Vec<u8>, String> {
        let stride = self.row_size();
        let mut bytes = vec![0; stride * table.rows()];
        let mut at = 0;
        for (column, values) in self.columns.iter().zip(self.values(schema, table, first)?) {
            let size = column.kind.size();
            let places = bytes.chunks_exact_mut(stride).map(|row| &mut row[at..at + size]);
            match values {
                Values::U8(values) => places.zip(values).for_each(|(place, value)| place[0] = value),
                Values::U32(values) => {
                    places.zip(values).for_each(|(place, value)| place.copy_from_slice(&value.to_le_bytes()));
                }
                Values::F32(values) => {
                    places.zip(values).for_each(|(place, value)| place.copy_from_slice(&value.to_le_bytes()));
                }
            }
            at += size;
        }
        Ok(bytes)
    }

    /// The units of the columns that have one, and the conventions, in one line.
    pub(super) fn line(&self) -> String {
        let units: Vec<String> = self
            .columns
            .iter()
            .filter(|column| !column.unit.is_empty())
            .map(|column| format!("{} in {}", column.name, column.unit))
            .collect();
        format!("{}; {}; frames count from {}", units.join(", "), self.origin.words(), self.frame_base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::localize::{
        options::Units,
        schema::{Model, Score},
        testing::{square, table},
    };

    #[test]
    fn columns_that_are_taken_out_of_a_table_are_those_that_are_made_of_it() {
        for model in Model::ALL {
            let schema = Schema { score: Some(Score::NetGradient), ..square(model) };
            let table = table(&schema, 7);
            let mut twice = all(&schema, Units::Pixels).unwrap();
            twice.columns.extend(twice.columns.clone());
            for layout in [
                all(&schema, Units::Auto).unwrap(),
                gaussmle(&schema).unwrap(),
                thunderstorm(&schema).unwrap(),
                picasso(&schema),
                twice,
            ] {
                let made = layout.columns.iter().map(|column| column.values(&schema, &table, 3).unwrap());
                let made: Vec<Values> = made.collect();
                assert_eq!(layout.values(&schema, table.clone(), 3), Ok(made));
            }
        }
    }

    #[test]
    fn of_a_background_that_is_no_number_the_noise_is_none_either() {
        let schema = square(Model::Xynb);
        let mut table = table(&schema, 3);
        table.theta[3] = vec![4.0, f32::NAN, -1.0];
        let layout = thunderstorm(&schema).unwrap();
        let noise = layout.columns.iter().find(|column| column.source == Source::BackgroundNoise).unwrap();
        let Ok(Values::F32(noise)) = noise.values(&schema, &table, 0) else { panic!("they are numbers") };
        assert!(noise[0] == 2.0 && noise[1].is_nan() && noise[2] == 0.0, "{noise:?}");
    }

    #[test]
    fn a_column_that_is_written_as_it_is_stays_where_it_lies() {
        let schema = square(Model::Xynb);
        let (table, layout) = (table(&schema, 7), all(&schema, Units::Pixels).unwrap());
        let lies = table.theta[1].as_ptr();
        let values = layout.values(&schema, table, 0).unwrap();
        assert!(matches!(&values[2], Values::F32(y) if y.as_ptr() == lies));
    }
}
