//! A line of JSON per frame, between a head and a tail.
//!
//! The head has the units, the conventions and what is known about the model and the frames. A frame's line has the frame's number, the
//! number of rows, and an array per column. A frame that comes in two chunks has two lines; one without rows has none. The tail has
//! `"end": true` and counts. An output that breaks off has a line with `error` instead. JSON has no NaN: such numbers are `null`.

use super::{
    Counts, Encoder, Pieces, Status, Table,
    layout::{Layout, Source, Values},
    number,
    schema::Schema,
    table::OVER_SPOTS_MAX,
};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(super) struct Ndjson {
    schema: Arc<Schema>,
    layout: Layout,
}

impl Ndjson {
    pub(super) fn new(schema: &Arc<Schema>, layout: Layout) -> Ndjson {
        Ndjson { schema: Arc::clone(schema), layout }
    }

    fn head(&self) -> Value {
        let columns = self.layout.columns.iter().filter(|column| column.source != Source::Frame);
        let units: Map<String, Value> =
            columns.filter(|c| !c.unit.is_empty()).map(|c| (c.name.clone(), json!(c.unit))).collect();
        let mut head = json!({});
        for (name, value) in self.schema.facts() {
            // Numbers as numbers, pairs as arrays.
            let numbers: Option<Vec<f64>> = value.split(' ').map(|word| word.parse().ok()).collect();
            head[name.as_str()] = match (name.as_str(), numbers) {
                ("sigma_px" | "pixel_size_nm", Some(numbers)) => json!(numbers),
                ("frame_size_px", _) => json!(self.schema.frame_size),
                ("frames", _) => json!(self.schema.frames),
                ("images", _) => json!(self.schema.images),
                ("first_frame", _) => json!(self.schema.first_frame),
                ("excess_noise", Some(numbers)) => json!(numbers[0]),
                ("axes", _) => json!(self.schema.axes.map(|axes| json!({
                    "frames": axes.frames, "slices": axes.slices, "channels": axes.channels,
                }))),
                (key, Some(numbers)) if self.schema.settings.iter().any(|(of, _)| of == key) => {
                    let whole = value.parse::<i64>().map(|whole| json!(whole));
                    let one = || if numbers.len() == 1 { json!(numbers[0]) } else { json!(numbers) };
                    whole.unwrap_or_else(|_| one())
                }
                _ => json!(value),
            };
        }
        // After the caller's notes, so that no note replaces one of these members.
        head["format"] = json!("localizations");
        head["model"] = json!(self.schema.model.name());
        head["units"] = json!(units);
        head["pixel_origin"] = json!(self.layout.origin.words());
        head["frame_base"] = json!(self.layout.frame_base);
        if self.layout.has_status {
            head["status_codes"] = json!(Status::ALL.map(Status::name));
        }
        head
    }
}

/// Counts by the names of the statuses.
fn statuses(counts: &Counts) -> Map<String, Value> {
    Status::ALL.iter().zip(counts.status).map(|(status, n)| (status.name().to_owned(), json!(n))).collect()
}

fn line(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(value.to_string().as_bytes());
    out.push(b'\n');
}

impl Encoder for Ndjson {
    fn begin(&mut self, out: &mut Pieces) -> Result<(), String> {
        line(out.text(), &self.head());
        Ok(())
    }

    fn rows(&mut self, table: Table, first: u64, out: &mut Pieces) -> Result<(), String> {
        let out = out.text();
        let columns = self.layout.columns.iter().filter(|column| column.source != Source::Frame);
        let columns = columns.map(|column| {
            let key = Value::from(column.name.as_str()).to_string();
            Ok((key, column.values(&self.schema, &table, first)?))
        });
        let columns = columns.collect::<Result<Vec<(String, Values)>, String>>()?;
        let mut start = 0;
        for rows in table.frame.chunk_by(|a, b| a == b) {
            let range = start..start + rows.len();
            start = range.end;
            out.extend_from_slice(b"{\"frame\":");
            number::whole(out, u64::from(rows[0]) + u64::from(self.layout.frame_base));
            out.extend_from_slice(b",\"count\":");
            number::whole(out, rows.len() as u64);
            for (key, values) in &columns {
                out.push(b',');
                out.extend_from_slice(key.as_bytes());
                out.extend_from_slice(b":[");
                for row in range.clone() {
                    if row > range.start {
                        out.push(b',');
                    }
                    match values {
                        Values::U8(values) => number::whole(out, values[row].into()),
                        Values::U32(values) => number::whole(out, values[row].into()),
                        Values::F32(values) => number::real(out, values[row], "null"),
                    }
                }
                out.push(b']');
            }
            out.extend_from_slice(b"}\n");
        }
        Ok(())
    }

    fn end(self: Box<Self>, counts: &Counts) -> Result<Vec<Bytes>, String> {
        let mut out = Vec::new();
        let mut tail = json!({
            "end": true,
            "frames": counts.frames,
            "localizations": counts.written,
            "left_out": counts.rows - counts.written,
            OVER_SPOTS_MAX: counts.over_spots_max,
            "status": statuses(counts),
        });
        if !counts.devices.is_empty() {
            tail["devices"] = json!(counts.devices);
        }
        if !counts.fallbacks.is_empty() {
            tail["fallbacks"] = json!(counts.fallbacks);
        }
        line(&mut out, &tail);
        Ok(vec![Bytes::from(out)])
    }

    fn error(self: Box<Self>, message: &str, kind: &str, counts: &Counts) -> Vec<u8> {
        let mut out = Vec::new();
        let (localizations, status) = (counts.written, statuses(counts));
        line(
            &mut out,
            &json!({ "error": message, "type": kind, "localizations": localizations, "status": status }),
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use crate::tasks::localize::{testing::*, *};
    use serde_json::{Value, json};

    fn lines(text: &str) -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_per_frame_stands_between_head_and_tail() {
        let schema = Schema { frames: Some(7), ..schema(Model::Xynb) };
        let mut table = table(&schema, 4);
        table.theta[1][2] = f32::INFINITY;
        table.status[3] = 1;
        let lines = lines(&written(Format::Ndjson, &schema, &Options::default(), &[&table]));
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0]["units"]["xy_covariance_nm2"], "nm2");
        assert_eq!(lines[0]["pixel_size_nm"], json!([100.0, 120.0]));
        assert_eq!(lines[0]["frame_size_px"], json!([64, 48]));
        assert_eq!(lines[0]["frames"], 7);
        assert_eq!(lines[0]["camera"], "test");
        assert_eq!(lines[0]["frame_base"], 0);
        assert_eq!(lines[0]["pixel_origin"], "the center of the first pixel is (0, 0)");
        assert_eq!(lines[1]["frame"], 0);
        assert_eq!(lines[1]["count"], 3);
        assert_eq!(lines[1]["x_nm"], json!([1050, 1150, 1250]));
        assert_eq!(lines[1]["y_nm"], json!([2460, 2580, null]));
        assert_eq!(lines[2]["frame"], 1);
        assert_eq!(lines[2]["status"], json!([1]));
        let status =
            json!({"converged": 3, "iteration_limit": 1, "at_bound": 0, "singular": 0, "bad_input": 0});
        assert_eq!(
            lines[3],
            json!({
                "end": true, "frames": 7, "localizations": 4, "left_out": 0, "over_spots_max": 0, "status": status
            })
        );
    }

    #[test]
    fn the_head_tells_the_settings_as_numbers_where_they_are() {
        let settings = [("gain", "0.46"), ("offset", "offset.npy"), ("box_px", "7"), ("z_um", "-1 0.5")];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let schema = Schema { settings, images: 3, ..schema(Model::Xynb) };
        let options = Options { p_min: 0.01, ..Options::default() };
        let head = lines(&written(Format::Ndjson, &schema, &options, &[])).remove(0);
        let told = ["gain", "offset", "box_px", "z_um", "keep", "p_min", "excess_noise", "images"]
            .map(|key| &head[key]);
        let expected = json!([0.46, "offset.npy", 7, [-1.0, 0.5], "all", 0.01, 1.0, 3]);
        assert_eq!(json!(told), expected);
    }

    #[test]
    fn the_tail_counts_spots_that_were_left_out_of_full_frames() {
        let schema = schema(Model::Xynb);
        let full = Table { over_spots_max: 7, ..table(&schema, 3) };
        let lines = lines(&written(Format::Ndjson, &schema, &Options::default(), &[&full, &full]));
        let tail = &lines[lines.len() - 1];
        assert_eq!((&tail["over_spots_max"], &tail["left_out"]), (&json!(14), &json!(0)));
    }

    #[test]
    fn the_head_tells_the_axes_of_the_file_and_what_the_camera_adds() {
        let axes = crate::image::stack::Dimensions { frames: 80, slices: 1, channels: 2 };
        let schema = Schema { axes: Some(axes), excess_noise: 2.0, ..schema(Model::Xynb) };
        let head = lines(&written(Format::Ndjson, &schema, &Options::default(), &[])).remove(0);
        assert_eq!(head["axes"], json!({"frames": 80, "slices": 1, "channels": 2}));
        assert_eq!(head["excess_noise"], json!(2.0));
    }

    #[test]
    fn the_tail_names_each_device_once_and_why_others_stood_in() {
        let schema = schema(Model::Xynbs);
        let mut writer = Writer::new(Format::Ndjson, &schema, &Options::default()).unwrap();
        for (device, fallback) in [("GPU-1", None), ("cpu", Some("device_failed")), ("GPU-1", None)] {
            writer.ran_on(device, fallback);
        }
        let tail = writer.end(None).unwrap().pop().unwrap();
        let tail = lines(std::str::from_utf8(&tail).unwrap()).remove(0);
        assert_eq!(
            (&tail["devices"], &tail["fallbacks"]),
            (&json!(["GPU-1", "cpu"]), &json!(["device_failed"]))
        );
    }

    #[test]
    fn an_error_is_the_last_line() {
        let schema = schema(Model::Xynbs);
        let out = broken_off(Format::Ndjson, &schema, &[3], "page 2 is \"cut\" off");
        let lines = lines(std::str::from_utf8(&out).unwrap());
        assert_eq!(lines[2]["error"], "page 2 is \"cut\" off");
        assert_eq!(lines[2]["type"], "/docs/errors#not-an-image");
        assert_eq!(lines[2]["localizations"], 3);
        assert!(lines.iter().all(|line| line.get("end").is_none()));
    }

    #[test]
    fn gaussmle_frames_count_from_1() {
        let schema = schema(Model::Xynb);
        let options = Options { columns: Columns::GaussMle, ..Options::default() };
        let lines = lines(&written(Format::Ndjson, &schema, &options, &[&table(&schema, 4)]));
        assert_eq!(lines[0]["frame_base"], 1);
        assert_eq!(lines[2]["frame"], 2);
        assert_eq!(lines[2]["id"], json!([4]));
        assert_eq!(lines[2]["dataset"], json!([1]));
    }
}
