//! Formats replies as rows of text: a table for people, CSV, or lines of JSON. Pure functions.

use super::{super::table::table, arguments::by_extension, pictures::Picture};
use serde_json::Value;
use std::{borrow::Cow, path::Path};

/// How answers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Aligned columns, written once all answers are known.
    Table,
    /// A line for each file as it is answered: the server's reply with the file's name.
    Json,
    /// A line for each class, box, vector or number.
    Csv,
}

/// The file extensions of these forms.
const EXTENSIONS: [(&str, Form); 5] = [
    ("csv", Form::Csv),
    ("json", Form::Json),
    ("jsonl", Form::Json),
    ("ndjson", Form::Json),
    ("txt", Form::Table),
];

impl Form {
    /// The form with this name; without a name, that of the output file.
    ///
    /// # Errors
    /// A message that lists the forms and the task's picture formats, if it is none of them.
    pub(super) fn of(task: &str, format: Option<&str>, output: Option<&Path>) -> Result<Form, String> {
        let pictures = Picture::names(task);
        match (format, output) {
            (Some("table"), _) | (None, None) => Ok(Form::Table),
            (Some("json"), _) => Ok(Form::Json),
            (Some("csv"), _) => Ok(Form::Csv),
            (Some(other), _) => {
                let all = [&["table", "json", "csv"], pictures].concat();
                let (last, first) = all.split_last().expect("there are three at least");
                Err(format!("--format is {other:?}, expected {} or {last}", first.join(", ")))
            }
            (None, Some(output)) => by_extension(output, &EXTENSIONS, pictures),
        }
    }
}

/// Writes the answers of a model.
pub(super) struct Sheet {
    form: Form,
    columns: &'static [&'static str],
    /// Rows of the table; for CSV, rows from before the header was known.
    rows: Vec<Vec<String>>,
    /// Values in a vector; set by the first one.
    width: Option<usize>,
    begun: bool,
    /// Whether replies may be in a form other than the server's own.
    any: bool,
}

/// The members of replies that contain an answer.
const MEMBERS: &str = "classes, detections, mask, picture, landmarks, vector and outputs";

/// Numbers of a vector or tensor that a table shows.
const SHOWN: usize = 4;

impl Sheet {
    /// A sheet for a task.
    pub(super) fn new(form: Form, task: &str) -> Sheet {
        let columns: &[&str] = match task {
            "classify" => &["label", "index", "score"],
            "detect" => &["label", "index", "score", "left", "top", "right", "bottom"],
            "segment" => &["label", "index", "pixels"],
            "image" => &["width", "height", "channels", "depth"],
            "landmarks" => &["label", "index", "x", "y", "score"],
            "embed" => &["vector"],
            _ if form == Form::Csv => &["output", "index", "value"],
            _ => &["output", "datatype", "shape", "data"],
        };
        Sheet { form, columns, rows: Vec::new(), width: None, begun: false, any: false }
    }

    /// The same for replies in a form that the user chose. As lines of JSON they are written unchanged; no row is made of
    /// them.
    pub(super) fn in_any_form(mut self, any: bool) -> Sheet {
        self.any = any && self.form == Form::Json;
        self
    }

    /// The text that a file's reply adds to the output, and the errors of its frames.
    pub(super) fn add(&mut self, file: &str, reply: &[u8]) -> (String, Vec<String>) {
        let Ok(told) = serde_json::from_slice::<Value>(reply) else {
            let why = "the reply is not JSON".to_owned();
            return (self.fail(file, None, &why, None), vec![why]);
        };
        let mut mistakes = Vec::new();
        let mut text = String::new();
        let several = told["predictions"].as_array();
        let frames = several.map_or(vec![(None, &told)], |frames| {
            frames.iter().enumerate().map(|(index, frame)| (Some(index), frame)).collect()
        });
        for (frame, answer) in frames {
            let added = match answer["error"].as_str() {
                Some(why) => Err(why.to_owned()),
                None => {
                    self.answer(file, frame, answer).ok_or_else(|| format!("the reply has none of {MEMBERS}"))
                }
            };
            match added {
                Ok(rows) => text += &rows,
                Err(_) if self.any && answer["error"].is_null() => (),
                Err(why) => {
                    let place = frame.map(|frame| format!("frame {frame}: ")).unwrap_or_default();
                    mistakes.push(format!("{place}{why}"));
                    text += &self.failed(file, frame, &why);
                }
            }
        }
        match self.form {
            Form::Json => (line(file, &in_one_line(reply, &told)), mistakes),
            Form::Table | Form::Csv => (text, mistakes),
        }
    }

    /// The text for a file without an answer. `reply` is the server's reply, if any.
    pub(super) fn fail(
        &mut self,
        file: &str,
        frame: Option<usize>,
        why: &str,
        reply: Option<&[u8]>,
    ) -> String {
        if self.form != Form::Json {
            return self.failed(file, frame, why);
        }
        // A proxy may have sent anything.
        let told = reply.and_then(|reply| Some((reply, serde_json::from_slice::<Value>(reply).ok()?)));
        match told.filter(|(_, told)| told.is_object()) {
            Some((reply, told)) => line(file, &in_one_line(reply, &told)),
            None => line(file, &serde_json::json!({ "error": why }).to_string()),
        }
    }

    fn failed(&mut self, file: &str, frame: Option<usize>, why: &str) -> String {
        let mut row = self.head(file, frame);
        row.resize(2 + self.width.unwrap_or(self.columns.len()), String::new());
        row.push(why.to_owned());
        self.put(row)
    }

    fn head(&self, file: &str, frame: Option<usize>) -> Vec<String> {
        vec![file.to_owned(), frame.map(|frame| frame.to_string()).unwrap_or_default()]
    }

    /// The rows of an answer; `None` if it is not one.
    fn answer(&mut self, file: &str, frame: Option<usize>, answer: &Value) -> Option<String> {
        let mut text = String::new();
        let mut found = self.cells(answer)?;
        if found.is_empty() {
            // An empty row: nothing was found, unlike for a file that was not examined.
            found.push(vec![String::new(); self.columns.len()]);
        }
        for cells in found {
            let mut row = self.head(file, frame);
            if self.columns == ["vector"] && self.form == Form::Csv {
                self.width.get_or_insert(cells.len());
            }
            row.extend(cells);
            if self.form == Form::Csv {
                // The column of errors is empty.
                row.push(String::new());
            }
            text += &self.put(row);
        }
        Some(text)
    }

    /// The cells of an answer's rows, after those for its origin; `None` if it has no member of any task.
    fn cells(&self, answer: &Value) -> Option<Vec<Vec<String>>> {
        let list = |member: &Value| member.as_array().cloned().unwrap_or_default();
        let keys = |value: &Value, keys: &[&str]| -> Vec<String> {
            keys.iter().map(|key| cell(&value[*key])).collect()
        };
        if let Some(classes) = answer["classes"].as_array() {
            return Some(classes.iter().map(|class| keys(class, self.columns)).collect());
        }
        if let Some(found) = answer["detections"].as_array() {
            let row = |found: &Value| {
                let mut row = keys(found, &self.columns[..3]);
                row.extend(list(&found["box"]).iter().map(cell));
                row
            };
            return Some(found.iter().map(row).collect());
        }
        if let Some(classes) = answer["mask"]["classes"].as_array() {
            return Some(classes.iter().map(|class| keys(class, self.columns)).collect());
        }
        if let picture @ Value::Object(_) = &answer["picture"] {
            return Some(vec![keys(picture, self.columns)]);
        }
        if let Some(points) = answer["landmarks"].as_array() {
            let row = |(index, point): (usize, &Value)| {
                let [label, x, y, score] = ["label", "x", "y", "score"].map(|key| cell(&point[key]));
                vec![label, index.to_string(), x, y, score]
            };
            return Some(points.iter().enumerate().map(row).collect());
        }
        if let Some(vector) = answer["vector"].as_array() {
            return Some(match self.form {
                Form::Csv => vec![vector.iter().map(cell).collect()],
                Form::Table | Form::Json => vec![vec![shortened(vector)]],
            });
        }
        let outputs = answer["outputs"].as_array()?;
        let rows = outputs.iter().flat_map(|output| {
            let data = list(&output["data"]);
            match self.form {
                Form::Csv => {
                    let name = cell(&output["name"]);
                    let values = data.iter().enumerate();
                    values.map(|(index, value)| vec![name.clone(), index.to_string(), cell(value)]).collect()
                }
                Form::Table | Form::Json => {
                    let mut row = keys(output, &["name", "datatype"]);
                    row.push(output["shape"].to_string());
                    row.push(shortened(&data));
                    vec![row]
                }
            }
        });
        Some(rows.collect())
    }

    fn put(&mut self, row: Vec<String>) -> String {
        if self.form != Form::Csv || (self.columns == ["vector"] && self.width.is_none()) {
            self.rows.push(row);
            return String::new();
        }
        let mut text = self.begin();
        csv(&mut text, &row);
        text
    }

    /// The CSV header, and the rows that waited for it.
    fn begin(&mut self) -> String {
        let mut text = String::new();
        if !std::mem::replace(&mut self.begun, true) {
            let mut header = vec!["file".to_owned(), "frame".to_owned()];
            match self.width {
                Some(width) => header.extend((0..width).map(|index| format!("v{index}"))),
                None => header.extend(self.columns.iter().map(|column| (*column).to_owned())),
            }
            header.push("error".to_owned());
            let columns = header.len();
            csv(&mut text, &header);
            for mut row in std::mem::take(&mut self.rows) {
                let why = row.pop().unwrap_or_default();
                row.resize(columns - 1, String::new());
                row.push(why);
                csv(&mut text, &row);
            }
        }
        text
    }

    /// The text that remains to be written.
    pub(super) fn end(mut self) -> String {
        match self.form {
            Form::Json => String::new(),
            Form::Csv => self.begin(),
            Form::Table => {
                // Failures are reported separately from the table.
                self.rows.retain(|row| row.len() == 2 + self.columns.len());
                let framed = self.rows.iter().any(|row| !row[1].is_empty());
                let header = ["file", "frame"].iter().chain(self.columns).map(|name| name.to_uppercase());
                let mut lines = vec![header.collect::<Vec<_>>()];
                lines.append(&mut self.rows);
                if !framed {
                    lines.iter_mut().for_each(|line| drop(line.remove(1)));
                }
                if lines.len() == 1 { String::new() } else { table(&lines) }
            }
        }
    }
}

/// A reply, unchanged if it is one line, otherwise from its parsed form `told`.
fn in_one_line<'a>(reply: &'a [u8], told: &Value) -> Cow<'a, str> {
    let reply = reply.trim_ascii();
    if reply.contains(&b'\n') || reply.contains(&b'\r') {
        return told.to_string().into();
    }
    String::from_utf8_lossy(reply)
}

/// A reply as a line that begins with the file's name.
fn line(file: &str, reply: &str) -> String {
    let name = Value::from(file);
    match reply.strip_prefix('{') {
        Some(members) if members.trim_start() != "}" => format!("{{\"file\":{name},{members}\n"),
        _ => format!("{{\"file\":{name},\"reply\":{reply}}}\n"),
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The first numbers, and their total count.
fn shortened(values: &[Value]) -> String {
    let mut shown: Vec<String> = values.iter().take(SHOWN).map(cell).collect();
    if values.len() > SHOWN {
        shown.push(format!("… ({})", values.len()));
    }
    shown.join(" ")
}

/// A line of CSV, by RFC 4180.
fn csv(text: &mut String, row: &[String]) {
    for (index, cell) in row.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        if cell.contains([',', '"', '\n', '\r']) {
            text.push('"');
            text.push_str(&cell.replace('"', "\"\""));
            text.push('"');
        } else {
            text.push_str(cell);
        }
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(form: Form, task: &str, replies: &[(&str, &str)], expected: &str) {
        let mut sheet = Sheet::new(form, task);
        let mut text = String::new();
        for (file, reply) in replies {
            text += &sheet.add(file, reply.as_bytes()).0;
        }
        text += &sheet.end();
        assert_eq!(text, expected);
    }

    #[test]
    fn the_extension_of_what_is_written_says_its_form_unless_a_format_does() {
        let of = |format, output: &str| Form::of("classify", format, Some(Path::new(output)));
        for (output, form) in
            [("a.csv", Form::Csv), ("a.JSON", Form::Json), ("a.b.jsonl", Form::Json), ("a.txt", Form::Table)]
        {
            assert_eq!(of(None, output), Ok(form), "{output}");
            assert_eq!(of(Some("csv"), output), Ok(Form::Csv), "{output}");
        }
        for output in ["a.xlsx", "csv", "/dev/null"] {
            let told = of(None, output).expect_err(output);
            let known = "known are csv, json, jsonl, ndjson, txt; or give --format";
            assert!(told.starts_with(output) && told.contains(known), "{told}");
        }
        for (task, pictures) in [("segment", ", png, tiff;"), ("image", ", png, tiff;"), ("detect", "txt;")] {
            let told = Form::of(task, None, Some(Path::new("out"))).expect_err(task);
            assert!(told.contains(&format!("{pictures} or give --format")), "{told}");
        }
        assert_eq!(Form::of("classify", None, None), Ok(Form::Table));
        assert!(of(Some("hdf5"), "a.csv").is_err_and(|told| told.ends_with("expected table, json or csv")));
        let told = Form::of("segment", Some("hdf5"), None).expect_err("no such form");
        assert!(told.ends_with("expected table, json, csv, png or tiff"), "{told}");
    }

    const CLASSES: &str = r#"{"model":"m","classes":[{"label":"a, \"b\"","index":3,"score":0.98247856},{"label":null,"index":9,"score":0.005}]}"#;
    const PAGES: &str =
        r#"{"predictions":[{"classes":[{"label":"x","index":0,"score":1}]},{"error":"truncated"}]}"#;

    #[test]
    fn classes_are_rows() {
        check(
            Form::Csv,
            "classify",
            &[("1.png", CLASSES), ("2.tif", PAGES)],
            "file,frame,label,index,score,error\n\
             1.png,,\"a, \"\"b\"\"\",3,0.98247856,\n\
             1.png,,,9,0.005,\n\
             2.tif,0,x,0,1,\n\
             2.tif,1,,,,truncated\n",
        );
        check(
            Form::Table,
            "classify",
            &[("1.png", CLASSES)],
            "FILE   LABEL   INDEX  SCORE\n1.png  a, \"b\"  3      0.98247856\n1.png          9      0.005\n",
        );
        check(
            Form::Table,
            "classify",
            &[("2.tif", PAGES)],
            "FILE   FRAME  LABEL  INDEX  SCORE\n2.tif  0      x      0      1\n",
        );
    }

    #[test]
    fn boxes_masks_and_tensors_are_rows() {
        check(
            Form::Csv,
            "detect",
            &[("a", r#"{"detections":[{"box":[1,2.5,3,4],"label":"x","index":0,"score":0.5}]}"#)],
            "file,frame,label,index,score,left,top,right,bottom,error\na,,x,0,0.5,1,2.5,3,4,\n",
        );
        check(
            Form::Csv,
            "segment",
            &[("a", r#"{"mask":{"classes":[{"label":"sky","index":1,"pixels":7}]}}"#)],
            "file,frame,label,index,pixels,error\na,,sky,1,7,\n",
        );
        let pages = r#"{"predictions":[{"detections":[]},{"error":"no"}]}"#;
        check(
            Form::Csv,
            "detect",
            &[("a", r#"{"detections":[]}"#), ("b", pages)],
            "file,frame,label,index,score,left,top,right,bottom,error\na,,,,,,,,,\nb,0,,,,,,,,\nb,1,,,,,,,,no\n",
        );
        check(
            Form::Table,
            "detect",
            &[("a", r#"{"detections":[]}"#)],
            "FILE  LABEL  INDEX  SCORE  LEFT  TOP  RIGHT  BOTTOM\na\n",
        );
        let points = r#"{"landmarks":[{"label":"nose","x":1.5,"y":2,"score":0.5},{"x":3,"y":4}]}"#;
        check(
            Form::Csv,
            "landmarks",
            &[("a", points)],
            "file,frame,label,index,x,y,score,error\na,,nose,0,1.5,2,0.5,\na,,,1,3,4,,\n",
        );
        let outputs = r#"{"outputs":[{"name":"y","datatype":"FP32","shape":[1,5],"data":[1,2,3,4,5.5]}]}"#;
        check(
            Form::Table,
            "tensors",
            &[("a", outputs)],
            "FILE  OUTPUT  DATATYPE  SHAPE  DATA\na     y       FP32      [1,5]  1 2 3 4 … (5)\n",
        );
        check(
            Form::Csv,
            "tensors",
            &[("a", r#"{"outputs":[{"name":"y","data":[1,2]}]}"#)],
            "file,frame,output,index,value,error\na,,y,0,1,\na,,y,1,2,\n",
        );
    }

    #[test]
    fn a_reply_without_an_answer_is_a_mistake() {
        let mistakes = |form, reply: &str| Sheet::new(form, "classify").add("a", reply.as_bytes()).1;
        for reply in [r#"{"3":0.98,"9":0.01}"#, r#"[{"3":0.98}]"#, r#"{"predictions":[{"3":0.98}]}"#] {
            for form in [Form::Table, Form::Csv, Form::Json] {
                let told = mistakes(form, reply);
                assert!(told.len() == 1 && told[0].contains("has none of classes"), "{reply}: {told:?}");
            }
        }
        for reply in [r#"{"classes":[]}"#, r#"{"detections":[]}"#, r#"{"mask":{"classes":[]}}"#] {
            assert_eq!(mistakes(Form::Csv, reply), [""; 0], "{reply}");
        }
        let told = ("a", r#"{"3":0.98}"#);
        check(
            Form::Csv,
            "classify",
            &[told],
            "file,frame,label,index,score,error\n\
             a,,,,,\"the reply has none of classes, detections, mask, picture, landmarks, vector and outputs\"\n",
        );
    }

    #[test]
    fn vectors_have_a_column_for_each_number_even_if_the_first_file_failed() {
        let replies = [("a", r#"{"predictions":[{"error":"no"}]}"#), ("b", r#"{"vector":[0.5,-1]}"#)];
        check(Form::Csv, "embed", &replies, "file,frame,v0,v1,error\na,0,,,no\nb,,0.5,-1,\n");
    }

    #[test]
    fn lines_of_json_are_the_reply_with_the_name_of_the_file() {
        check(
            Form::Json,
            "classify",
            &[("a\"b", "{\"model\":\"m\"}\n")],
            "{\"file\":\"a\\\"b\",\"model\":\"m\"}\n",
        );
        check(Form::Json, "classify", &[("a", "[{\"3\":1}]")], "{\"file\":\"a\",\"reply\":[{\"3\":1}]}\n");
    }

    #[test]
    fn a_reply_of_several_lines_is_one_of_json() {
        let reply = "{\n  \"model\": \"m\",\r\n  \"classes\": []\n}\n";
        let mut sheet = Sheet::new(Form::Json, "classify");
        let (text, mistakes) = sheet.add("a", reply.as_bytes());
        assert_eq!((text.lines().count(), mistakes.len()), (1, 0), "{text}");
        let told = serde_json::json!({ "file": "a", "model": "m", "classes": [] });
        assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(told), "{text}");
    }

    fn fails(reply: &str, expected: &str) {
        let text = Sheet::new(Form::Json, "classify").fail("a", None, "why", Some(reply.as_bytes()));
        assert_eq!(text, expected, "{reply}");
    }

    #[test]
    fn what_a_gateway_says_is_a_line_of_json_whatever_it_is() {
        fails("{\n  \"message\": \"no route\"\n}\n", "{\"file\":\"a\",\"message\":\"no route\"}\n");
        fails("{\"error\": \"full\"}\n", "{\"file\":\"a\",\"error\": \"full\"}\n");
        fails("{upstream} is away", "{\"file\":\"a\",\"error\":\"why\"}\n");
        fails("{\"error\": \"cut of", "{\"file\":\"a\",\"error\":\"why\"}\n");
        fails("<html>", "{\"file\":\"a\",\"error\":\"why\"}\n");
    }
}
