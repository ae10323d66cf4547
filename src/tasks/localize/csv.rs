//! Comma-separated values: a line of names, a line per row. Numbers that are not finite are `NaN`.
//!
//! Our own files begin with comments (`#`) that state the units and conventions. ThunderSTORM's files have none, because its reader takes
//! the first line for the names; they quote the names as ThunderSTORM does. An output that breaks off ends with `# error: ...` in both, so
//! that no reader takes it for whole. One that lacks spots of full frames says so in a last comment; ThunderSTORM's cannot, since its reader
//! takes every line for numbers.

use super::{
    Counts, Encoder, Pieces, Status, Table,
    layout::{Layout, Values},
    number,
    schema::Schema,
    table::OVER_SPOTS_MAX,
};
use bytes::Bytes;
use std::sync::Arc;

pub(super) struct Csv {
    schema: Arc<Schema>,
    layout: Layout,
    comments: bool,
}

impl Csv {
    pub(super) fn new(schema: &Arc<Schema>, layout: Layout) -> Csv {
        Csv { schema: Arc::clone(schema), layout, comments: true }
    }

    pub(super) fn without_comments(schema: &Arc<Schema>, layout: Layout) -> Csv {
        Csv { comments: false, ..Csv::new(schema, layout) }
    }

    fn head(&self) -> String {
        let mut head = String::new();
        let quote = if self.comments { "" } else { "\"" };
        if self.comments {
            let facts: Vec<String> =
                self.schema.facts().iter().map(|(name, value)| format!("{name} {value}")).collect();
            head += &comment(&format!("localizations: {}", facts.join(", ")));
            head += &comment(&self.layout.line());
        }
        if self.layout.has_status {
            let codes: Vec<String> =
                Status::ALL.iter().map(|status| format!("{} {}", *status as u8, status.name())).collect();
            head += &comment(&format!("status: {}", codes.join(", ")));
        }
        let names: Vec<String> =
            self.layout.columns.iter().map(|column| format!("{quote}{}{quote}", column.name)).collect();
        head + &names.join(",") + "\n"
    }
}

/// A line that readers skip.
fn comment(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("# {line}\n")
}

impl Encoder for Csv {
    fn begin(&mut self, out: &mut Pieces) -> Result<(), String> {
        out.text().extend_from_slice(self.head().as_bytes());
        Ok(())
    }

    fn rows(&mut self, table: Table, first: u64, out: &mut Pieces) -> Result<(), String> {
        let (rows, out) = (table.rows(), out.text());
        let columns = self.layout.values(&self.schema, table, first)?;
        for row in 0..rows {
            for (at, column) in columns.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                match column {
                    Values::U8(values) => number::whole(out, values[row].into()),
                    Values::U32(values) => number::whole(out, values[row].into()),
                    Values::F32(values) => number::real(out, values[row], "NaN"),
                }
            }
            out.push(b'\n');
        }
        Ok(())
    }

    fn end(self: Box<Self>, counts: &Counts) -> Result<Vec<Bytes>, String> {
        let over = counts.over_spots_max;
        if over == 0 || !self.comments {
            return Ok(Vec::new());
        }
        let told = format!(
            "{OVER_SPOTS_MAX}: {over} spots were not fitted, the weakest of frames with more than spots_max"
        );
        Ok(vec![comment(&told).into()])
    }

    fn error(self: Box<Self>, message: &str, _kind: &str, _counts: &Counts) -> Vec<u8> {
        comment(&format!("error: {message}")).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use crate::tasks::localize::{testing::*, *};

    #[test]
    fn our_columns_have_their_units_in_their_names() {
        let schema = schema(Model::Xynb);
        let mut table = table(&schema, 2);
        table.theta[0][1] = f32::NAN;
        let text = written(Format::Csv, &schema, &Options::default(), &[&table]);
        assert_eq!(
            text,
            "# localizations: model xynb, sigma_px 1.3 1.25, pixel_size_nm 100 120, frame_size_px 64 48, excess_noise 1, keep all, p_min 0, camera test\n\
             # x_nm in nm, y_nm in nm, photons in photons, background in photons/px, x_error_nm in nm, y_error_nm in \
             nm, photons_error in photons, background_error in photons/px, xy_covariance_nm2 in nm2; the center of \
             the first pixel is (0, 0); frames count from 0\n\
             # status: 0 converged, 1 iteration_limit, 2 at_bound, 3 singular, 4 bad_input\n\
             frame,x_nm,y_nm,photons,background,x_error_nm,y_error_nm,photons_error,background_error,\
             xy_covariance_nm2,log_likelihood_ratio,p_value,iterations,status\n\
             0,1050,2460,1000,10,5,6.6,40,0.5,11.71875,-20,0.5,5,0\n\
             0,NaN,2580,1001,10,5,6.6,40,0.5,11.71875,-20,0.5,5,0\n"
        );
    }

    #[test]
    fn without_a_pixel_size_positions_stay_in_pixels() {
        let schema = Schema { pixel_nm: None, ..schema(Model::Xyznb) };
        let text = written(Format::Csv, &schema, &Options::default(), &[&table(&schema, 1)]);
        let names = text.lines().nth(3).unwrap();
        assert!(
            names.starts_with("frame,x_px,y_px,z_um,photons,background,x_error_px,y_error_px,z_error_um,")
        );
        assert!(names.contains(",xy_covariance_px2,xz_covariance_px_um,yz_covariance_px_um,"), "{names}");
        assert!(text.lines().nth(4).unwrap().starts_with("0,10.5,20.5,0.1,1000,10,"), "{text}");
        let error =
            Writer::new(Format::Csv, &schema, &Options { units: Units::Nanometers, ..Options::default() });
        assert_eq!(
            error.unwrap_err(),
            "nm as the unit needs the pixel size, which is not known so far: give pixel_nm, such as pixel_nm=100 in the query (ocelli \
             predict: --set pixel_nm=100); an OME-TIFF may say it only at its end"
        );
    }

    #[test]
    fn thunderstorm_counts_from_the_corner_and_from_frame_1() {
        let schema = schema(Model::Xynb);
        let text = written(Format::ThunderStorm, &schema, &Options::default(), &[&table(&schema, 1)]);
        // x: (10.5 + 0.5) * 100, y: (20.5 + 0.5) * 120; sigma: sqrt(1.3 * 100 * 1.25 * 120); background noise: sqrt(10);
        // uncertainty: sqrt((5^2 + 6.6^2) / 2).
        assert_eq!(
            text,
            "\"id\",\"frame\",\"x [nm]\",\"y [nm]\",\"sigma [nm]\",\"intensity [photon]\",\"offset [photon]\",\
             \"bkgstd [photon]\",\"uncertainty_xy [nm]\",\"p_value\"\n\
             1,1,1100,2520,139.6424,1000,10,3.1622777,5.8549123,0.5\n"
        );
        // sqrt(2 * 10): multiplication increases the variance.
        let schema = Schema { excess_noise: 2.0, ..schema };
        let text = written(Format::ThunderStorm, &schema, &Options::default(), &[&table(&schema, 1)]);
        assert!(text.contains(",1000,10,4.472136,"), "{text}");
    }

    #[test]
    fn thunderstorm_has_two_widths_where_they_differ() {
        let names = |model| {
            let schema = schema(model);
            written(Format::ThunderStorm, &schema, &Options::default(), &[&table(&schema, 1)])
        };
        assert!(names(Model::Xynbsxsy).contains("\"sigma [nm]\",\"sigma1 [nm]\",\"sigma2 [nm]\""));
        let astigmatic = names(Model::Xyznb);
        assert!(astigmatic.contains("\"z [nm]\",\"sigma1 [nm]\",\"sigma2 [nm]\""), "{astigmatic}");
        assert!(astigmatic.contains("\"uncertainty_z [nm]\""));
        assert!(astigmatic.contains("\n1,1,1100,2520,100,"), "{astigmatic}");
    }

    #[test]
    fn gaussmle_columns_are_um_from_the_corner() {
        let options = Options { columns: Columns::GaussMle, ..Options::default() };
        let schema = schema(Model::Xynbs);
        let text = written(Format::Csv, &schema, &options, &[&table(&schema, 1)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("x in um, y in um"), "{}", lines[1]);
        assert!(lines[1].ends_with("the outer corner of the first pixel is (0, 0); frames count from 1"));
        assert_eq!(
            lines[3],
            "x,y,photons,bg,σ,σ_x,σ_y,σ_xy,σ_photons,σ_bg,σ_σ,pvalue,frame,dataset,track_id,id,status"
        );
        // The covariance in um^2: 1/1024 px^2 * 0.1 um * 0.12 um.
        assert_eq!(
            lines[4],
            "1.1,2.52,1000,10,0.14,0.005,0.0066,0.00001171875,40,0.5,0.003125,0.5,1,1,0,1,0"
        );
    }

    #[test]
    fn spots_that_were_left_out_of_full_frames_are_told_in_a_last_comment_where_readers_know_comments() {
        let schema = schema(Model::Xynb);
        let full = Table { over_spots_max: 7, ..table(&schema, 3) };
        let last = |format, full: &Table| {
            let text = written(format, &schema, &Options::default(), &[full, full]);
            text.lines().next_back().unwrap().to_owned()
        };
        assert_eq!(
            last(Format::Csv, &full),
            "# over_spots_max: 14 spots were not fitted, the weakest of frames with more than spots_max"
        );
        for (format, table) in [(Format::ThunderStorm, &full), (Format::Csv, &table(&schema, 3))] {
            assert!(last(format, table).starts_with(|c: char| c.is_ascii_digit()), "{}", format.name());
        }
    }

    #[test]
    fn rows_are_numbered_over_chunks_and_errors_come_last() {
        let schema = schema(Model::Xynb);
        let out = broken_off(Format::ThunderStorm, &schema, &[2, 1], "frame 7 is cut off\nafter 12 bytes");
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[3].starts_with("3,"), "{text}");
        assert_eq!(lines[4], "# error: frame 7 is cut off after 12 bytes");
    }
}
