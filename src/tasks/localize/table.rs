//! Rows of localizations, column by column, as the engine returns them.

use super::{Schema, Score};

pub use crate::engine::kernels::FitStatus as Status;

/// Rows of localizations, one `Vec` per column, all of the same length. Coordinates are pixels of the frame: the centre
/// of its first pixel is (0, 0), frames count from 0. z is in um.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// Frame of each row.
    pub frame: Vec<u32>,
    /// A column per parameter, in the order of [`Model::parameters`](super::Model::parameters).
    pub theta: Vec<Vec<f32>>,
    /// A column of standard errors per parameter, in its unit.
    pub errors: Vec<Vec<f32>>,
    /// A column per pair of [`Model::covariances`](super::Model::covariances), in the product of their units.
    pub covariances: Vec<Vec<f32>>,
    /// Log-likelihood of the fit minus that of a perfect fit: 0 or below.
    pub log_likelihood_ratio: Vec<f32>,
    /// The probability of a worse fit if the model is true.
    pub p_value: Vec<f32>,
    /// Number of evaluations of the likelihood.
    pub iterations: Vec<u8>,
    /// Codes of [`Status`].
    pub status: Vec<u8>,
    /// What detection measured: a value per row if the schema has a score, else empty.
    pub score: Vec<f32>,
    /// Spots in these frames without a row, because their frame has more than `spots_max`.
    pub over_spots_max: u64,
}

impl Table {
    /// An empty table with the columns of a schema.
    pub fn new(schema: &Schema) -> Table {
        let parameters = schema.model.parameters().len();
        Table {
            theta: vec![Vec::new(); parameters],
            errors: vec![Vec::new(); parameters],
            covariances: vec![Vec::new(); schema.model.covariances().len()],
            ..Table::default()
        }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.frame.len()
    }

    /// Checks that the columns are those of the schema and equally long, and that the codes are known. Returns how many rows have each
    /// code.
    ///
    /// # Errors
    /// Names the first column that is wrong.
    pub fn check(&self, schema: &Schema) -> Result<[u64; 5], String> {
        let counts = [
            ("parameters", self.theta.len(), schema.model.parameters().len()),
            ("standard errors", self.errors.len(), schema.model.parameters().len()),
            ("covariances", self.covariances.len(), schema.model.covariances().len()),
        ];
        for (name, found, expected) in counts {
            if found != expected {
                return Err(format!(
                    "a table of model {} has {found} columns of {name}, expected {expected}",
                    schema.model.name()
                ));
            }
        }
        let scored = schema.score.map(|_: Score| self.score.len());
        let mut lengths = vec![
            ("log_likelihood_ratio", self.log_likelihood_ratio.len()),
            ("p_value", self.p_value.len()),
            ("iterations", self.iterations.len()),
            ("status", self.status.len()),
        ];
        lengths.extend(scored.map(|length| ("score", length)));
        for (name, columns) in
            [("parameter", &self.theta), ("standard error", &self.errors), ("covariance", &self.covariances)]
        {
            lengths.extend(columns.iter().map(|column| (name, column.len())));
        }
        for (name, length) in lengths {
            if length != self.rows() {
                return Err(format!("a column of {name} has {length} rows, expected {}", self.rows()));
            }
        }
        let counts = Status::ALL.map(|status| count(&self.status, status as u8));
        if counts.iter().sum::<u64>() == self.rows() as u64 {
            return Ok(counts);
        }
        let unknown = self.status.iter().find(|code| Status::from_code(**code).is_none());
        Err(format!("status {} is unknown, expected 0 to 4", unknown.copied().unwrap_or_default()))
    }

    /// Adds the rows of another table of the same schema.
    pub fn append(&mut self, other: Table) {
        let each = |columns: &mut Vec<Vec<f32>>, others: Vec<Vec<f32>>| {
            columns.iter_mut().zip(others).for_each(|(column, other)| column.extend(other));
        };
        self.frame.extend(other.frame);
        each(&mut self.theta, other.theta);
        each(&mut self.errors, other.errors);
        each(&mut self.covariances, other.covariances);
        self.log_likelihood_ratio.extend(other.log_likelihood_ratio);
        self.p_value.extend(other.p_value);
        self.iterations.extend(other.iterations);
        self.status.extend(other.status);
        self.score.extend(other.score);
        self.over_spots_max += other.over_spots_max;
    }

    /// Makes frame numbers start from `first` instead of 0.
    ///
    /// # Errors
    /// A number beyond 32 bits.
    pub(super) fn count_from(&mut self, first: u32) -> Result<(), String> {
        self.frame.iter_mut().try_for_each(|frame| {
            *frame = frame.checked_add(first).ok_or_else(|| {
                format!("frame {frame}, counted from first_frame={first}, does not fit into 32 bits")
            })?;
            Ok(())
        })
    }

    /// The rows for which `keep` is true.
    pub(super) fn select(&self, keep: &[bool]) -> Table {
        fn pick<T: Copy>(column: &[T], keep: &[bool]) -> Vec<T> {
            column.iter().zip(keep).filter(|(_, keep)| **keep).map(|(value, _)| *value).collect()
        }
        let pick_each = |columns: &[Vec<f32>]| columns.iter().map(|column| pick(column, keep)).collect();
        Table {
            frame: pick(&self.frame, keep),
            theta: pick_each(&self.theta),
            errors: pick_each(&self.errors),
            covariances: pick_each(&self.covariances),
            log_likelihood_ratio: pick(&self.log_likelihood_ratio, keep),
            p_value: pick(&self.p_value, keep),
            iterations: pick(&self.iterations, keep),
            status: pick(&self.status, keep),
            score: pick(&self.score, keep),
            over_spots_max: self.over_spots_max,
        }
    }
}

/// How many of the codes equal `code`. Sums in blocks of as many as a byte can count.
fn count(codes: &[u8], code: u8) -> u64 {
    let of_some = |some: &[u8]| some.iter().map(|one| u8::from(*one == code)).sum::<u8>();
    codes.chunks(usize::from(u8::MAX)).map(|some| u64::from(of_some(some))).sum()
}

/// The name of [`Counts::over_spots_max`] in all output.
pub const OVER_SPOTS_MAX: &str = "over_spots_max";

/// What has passed through a writer so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows that the writer was given.
    pub rows: u64,
    /// Rows that were written: those that the format and the options keep.
    pub written: u64,
    /// Rows that the writer was given, by the code of their [`Status`].
    pub status: [u64; 5],
    /// Spots that were found and not fitted: the weakest in frames with more than `spots_max`.
    pub over_spots_max: u64,
    /// Number of frames: as stated, or one more than the last frame of any row.
    pub frames: u32,
    /// The devices that computed rows, each once.
    pub devices: Vec<String>,
    /// Why other devices than the intended ones did, each reason once.
    pub fallbacks: Vec<&'static str>,
}

impl Counts {
    /// The counts as `name=number`, separated by commas: frames (as stated, else as counted), rows, rows written, those of each status that
    /// occurred, and spots left out of frames with too many, if there are any.
    pub fn to_line(&self, frames: Option<u32>) -> String {
        let statuses = Status::ALL.iter().zip(self.status).filter(|(_, count)| *count > 0);
        let statuses = statuses.map(|(status, count)| (status.name(), count));
        let first = [
            ("frames", u64::from(frames.unwrap_or(self.frames))),
            ("localizations", self.rows),
            ("written", self.written),
        ];
        let over = Some((OVER_SPOTS_MAX, self.over_spots_max)).filter(|(_, count)| *count > 0);
        let all = first.into_iter().chain(statuses).chain(over);
        all.map(|(name, count)| format!("{name}={count}")).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn add(&mut self, table: &Table, status: [u64; 5], written: usize) {
        self.rows += table.rows() as u64;
        self.written += written as u64;
        self.over_spots_max += table.over_spots_max;
        self.status.iter_mut().zip(status).for_each(|(all, more)| *all += more);
        let frames = table.frame.iter().copied().max().map_or(0, |last| last.saturating_add(1));
        self.frames = self.frames.max(frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spots_that_were_left_out_of_full_frames_are_told_where_there_were_any() {
        let mut counts = Counts { rows: 4, written: 4, status: [4, 0, 0, 0, 0], ..Counts::default() };
        assert_eq!(counts.to_line(Some(2)), "frames=2, localizations=4, written=4, converged=4");
        for over_spots_max in [3, 2] {
            counts.add(&Table { over_spots_max, ..Table::default() }, [0; 5], 0);
        }
        let line = "frames=2, localizations=4, written=4, converged=4, over_spots_max=5";
        assert_eq!(counts.to_line(Some(2)), line);
    }

    #[test]
    fn codes_are_counted_however_many_there_are() {
        for (rows, every) in [(0_usize, 1), (7, 2), (255, 1), (256, 1), (10_000, 3)] {
            let codes: Vec<u8> = (0..rows).map(|row| u8::from(row % every == 0)).collect();
            assert_eq!(count(&codes, 1), rows.div_ceil(every) as u64, "{rows} {every}");
            assert_eq!(count(&codes, 0) + count(&codes, 1), rows as u64);
        }
    }
}
