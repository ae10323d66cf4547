//! What an Ultralytics export says of itself in its file: what it is for, its classes, how it takes images, and what follows each box.

use super::{
    Engine, Manifest, Source,
    manifest::{Input, KEYPOINTS_MAX, SIDE_MAX},
};
use crate::{
    engine::{Dim, Signature, onnx::outline::Outline},
    tasks::{Detect, Format, Keypoints, Labels, ROWS_MAX, Task},
};
use std::{iter::Peekable, str::Chars, sync::Arc};

/// More classes are no list of classes.
const CLASSES_MAX: usize = 65_536;
/// Where the boxes are.
const BOXES: &str = "output0";
/// Where the prototypes of masks are.
const PROTOTYPES: &str = "output1";
/// Box, score and class in a row that the model has sorted out.
const COLUMNS: usize = 6;

/// The task and the labels of a model: what its manifest leaves open is as its file says, and the log tells it. If there is no manifest,
/// the log says which line makes the file take images.
///
/// # Errors
/// A manifest that denies what the file says follows each box, or wants a class of each pixel from a file of instances.
pub(super) fn complete(
    source: &Source,
    signature: &Signature,
    outline: &Outline,
) -> Result<(Task, Arc<Labels>), String> {
    let Source { name, version, manifest, labels, .. } = source;
    let (mut task, mut labels) = (manifest.task.clone(), Arc::clone(labels));
    if manifest.engine != Engine::Onnx || manifest.declared.is_some() {
        return Ok((task, labels));
    }
    let Some(said) = Said::of(source, outline) else { return Ok((task, labels)) };
    let word = said.word;
    if *manifest == Manifest::default() {
        tracing::info!(
            model = name,
            version,
            "the file says that it is a YOLO for {word}: it takes images with the line task = {:?} in its model.toml",
            said.of.task()
        );
    }
    if said.of == Of::Segment {
        refuse_prototypes(&task, signature)?;
    }
    if task.name() != said.of.task() {
        return Ok((task, labels));
    }
    let lines = match (&mut task, &manifest.input) {
        (Task::Detect(detect), _) => [said.fill(detect, signature)?, said.sort_out(detect, signature)],
        (task, Some(input)) => [usual(task, outline).told(input), None],
        _ => [None, None],
    };
    // The one class of a network for depths is no class of anything.
    let own = labels.is_empty() && !said.labels.is_empty() && said.of != Of::Depth;
    let names = own.then(|| format!("{} labels", said.labels.len()));
    if own {
        labels = Arc::new(said.labels);
    }
    let taken: Vec<String> = names.into_iter().chain(lines.into_iter().flatten()).collect();
    if !taken.is_empty() {
        let taken = taken.join(", ");
        tracing::info!(
            model = name,
            version,
            "taken from the file, which says that it is a YOLO for {word}: {taken}"
        );
    }
    Ok((task, labels))
}

/// Refuses the outputs of a network for instances where a class of each pixel is asked for.
fn refuse_prototypes(task: &Task, signature: &Signature) -> Result<(), String> {
    let Task::Segment(segment) = task else { return Ok(()) };
    let is_theirs = segment.output.as_deref().is_none_or(|output| [BOXES, PROTOTYPES].contains(&output));
    if !is_theirs || signature.outputs.iter().all(|output| output.name != PROTOTYPES) {
        return Ok(());
    }
    Err(format!(
        "the file says that it is a YOLO for segment, which finds objects with a mask of each: {BOXES:?} has their boxes, {PROTOTYPES:?} \
         what the masks are made of, and neither a class of each pixel; serve it with task = \"detect\""
    ))
}

/// How the network of such a file takes images, as far as the file tells it and the task does not.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Usual {
    /// Whether they are letterboxed, with a mean of 0 and a deviation of 1.
    pub(super) is_letterboxed: bool,
    /// Width and height that it was exported with; a dynamic export takes others as well.
    pub(super) size: Option<[u32; 2]>,
}

/// How the network takes images for this task.
pub(super) fn usual(task: &Task, outline: &Outline) -> Usual {
    let Some((_, of)) = kind(outline) else { return Usual::default() };
    let size = outline.metadata.get("imgsz").and_then(|text| size_of(text.as_ref().ok()?));
    Usual { is_letterboxed: of == Of::Semantic && of.task() == task.name(), size }
}

/// Width and height in `[height, width]`.
fn size_of(text: &str) -> Option<[u32; 2]> {
    let (height, width) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(',')?;
    let side = |text: &str| text.trim().parse().ok().filter(|side| (1..=SIDE_MAX).contains(side));
    Some([side(width)?, side(height)?])
}

impl Usual {
    /// The keys of `[input]` that it says.
    pub(super) fn keys(&self) -> &'static [&'static str] {
        if self.is_letterboxed { &["resize", "scale", "mean", "std"] } else { &[] }
    }

    /// The lines of `[input]` that say the same, without those that an author has.
    fn told(&self, input: &Input) -> Option<String> {
        let lines = [
            ("resize = \"letterbox\"", input.resize.is_none()),
            ("mean = 0", input.mean.is_none()),
            ("std = 1", input.std.is_none()),
        ];
        let unset = lines.into_iter().filter(|(_, unset)| self.is_letterboxed && *unset);
        let lines: Vec<_> = unset.map(|(line, _)| line).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }
}

/// What such a file says.
struct Said {
    word: &'static str,
    of: Of,
    labels: Labels,
    keypoints: Option<usize>,
    /// Whether the network sorts out its boxes itself.
    sorts_out: bool,
}

/// What it is for.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Classify,
    Detect,
    /// Objects with their masks.
    Segment,
    Pose,
    Obb,
    /// A class for each pixel.
    Semantic,
    Depth,
}

impl Of {
    /// The task in a manifest.
    fn task(self) -> &'static str {
        match self {
            Of::Classify => "classify",
            Of::Detect | Of::Segment | Of::Pose | Of::Obb => "detect",
            Of::Semantic => "segment",
            Of::Depth => "image",
        }
    }
}

/// The words for it in a file.
const ALL: [(&str, Of); 7] = [
    ("classify", Of::Classify),
    ("detect", Of::Detect),
    ("segment", Of::Segment),
    ("pose", Of::Pose),
    ("obb", Of::Obb),
    ("semantic", Of::Semantic),
    ("depth", Of::Depth),
];

/// What a file is for, and its word for it; `None` if it is no such export.
fn kind(outline: &Outline) -> Option<(&'static str, Of)> {
    let word =
        outline.metadata.get("task")?.as_ref().ok().filter(|_| outline.metadata.contains_key("names"))?;
    ALL.into_iter().find(|(known, _)| known == word)
}

impl Said {
    /// What a model's file says; `None` if it is no such export. Names of classes that cannot be read are left out, and the log says so.
    fn of(source: &Source, outline: &Outline) -> Option<Said> {
        let (word, of) = kind(outline)?;
        let keys = ["names", "kpt_shape", "end2end", "args", "description", "head"];
        let [names, keypoints, end2end, args, description, head] =
            keys.map(|key| outline.metadata.get(key).cloned());
        let labels = names?.and_then(|text| names_of(&text).ok_or("it is no {0: 'name', 1: …}".to_owned()));
        let labels = labels.unwrap_or_else(|why| {
            tracing::warn!(
                model = source.name,
                version = source.version,
                "the names of classes in the file's metadata are ignored: {why}"
            );
            Labels::default()
        });
        let keypoints = keypoints.and_then(Result::ok).and_then(|text| {
            let (count, _) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(',')?;
            count.parse().ok().filter(|count| (1..=KEYPOINTS_MAX).contains(count))
        });
        let text = |value: Option<Result<String, String>>| value.and_then(Result::ok).unwrap_or_default();
        let [kind, head] = [description, head].map(|value| text(value).to_lowercase());
        // Exporters before 8.4 do not say it of YOLOv10, which has no other form. RT-DETR's rows have boxes of another form.
        let said = text(end2end) == "True" || text(args).contains("'nms': True") || kind.contains("yolov10");
        let other = [&kind, &head].iter().any(|text| text.replace('-', "").contains("rtdetr"));
        Some(Said { word, of, labels, keypoints, sorts_out: said && !other })
    }

    /// Fills in what a detector's manifest leaves open of what follows each box. Returns the line that says the same.
    fn fill(&self, detect: &mut Detect, signature: &Signature) -> Result<Option<String>, String> {
        let told = detect.keypoints.is_some() || detect.masks.is_some() || detect.angle == Some(true);
        if told || detect.columns.is_some() || detect.format == Some(Format::Boxes) {
            return Ok(None);
        }
        Ok(match (self.of, self.keypoints) {
            (Of::Pose, Some(count)) => {
                detect.keypoints = Some(Keypoints { count, names: Labels::default() });
                Some(format!("keypoints = {count}"))
            }
            (Of::Obb, _) if detect.angle == Some(false) => {
                return Err(
                    "detect.angle is false, but the file says that it is a YOLO for obb: the last number of each box is the angle by which \
                     it is turned, without which its sides are those of another box; leave detect.angle out"
                        .to_owned(),
                );
            }
            (Of::Obb, _) => {
                detect.angle = Some(true);
                Some("angle = true".to_owned())
            }
            (Of::Segment, _) if signature.outputs.iter().any(|output| output.name == PROTOTYPES) => {
                detect.masks = Some(PROTOTYPES.to_owned());
                Some(format!("masks = {PROTOTYPES:?}"))
            }
            _ => None,
        })
    }

    /// Fills in that boxes come in rows that the network has sorted out, if the file says so, the output's shape allows it, and the manifest
    /// says nothing of either form. Returns the line that says the same.
    fn sort_out(&self, detect: &mut Detect, signature: &Signature) -> Option<String> {
        let told = detect.format.is_some()
            || detect.columns.is_some()
            || detect.orientation.is_some()
            || detect.objectness.is_some();
        if told || !self.sorts_out {
            return None;
        }
        let named = |name: &str| signature.outputs.iter().find(|output| output.name == name);
        let output = match (&detect.output, &signature.outputs[..]) {
            (Some(name), _) => named(name)?,
            (None, [only]) => only,
            (None, _) => named(BOXES)?,
        };
        let behind = match (&detect.keypoints, &detect.masks) {
            (Some(keypoints), _) => vec![2 * keypoints.count, 3 * keypoints.count],
            (None, Some(masks)) => match named(masks)?.shape[..] {
                [_, Dim::Fixed(prototypes), _, _] => vec![prototypes],
                _ => return None,
            },
            (None, None) => vec![usize::from(detect.angle == Some(true))],
        };
        let fits = match output.shape[..] {
            [] => true,
            [_, rows, numbers] => {
                let few = matches!(rows, Dim::Free | Dim::Fixed(0..=ROWS_MAX));
                few && behind.iter().any(|behind| numbers.takes(COLUMNS + behind))
            }
            _ => false,
        };
        fits.then(|| {
            detect.format = Some(Format::End2end);
            "format = \"end2end\"".to_owned()
        })
    }
}

/// The names in `{0: 'person', 1: "trainer's"}`, as Python writes a dictionary of names by class number.
fn names_of(text: &str) -> Option<Labels> {
    let mut names: Vec<String> = Vec::new();
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim().chars().peekable();
    while rest.peek().is_some() {
        let number: String = std::iter::from_fn(|| rest.next_if(char::is_ascii_digit)).collect();
        if number.parse() != Ok(names.len()) || names.len() == CLASSES_MAX || rest.next() != Some(':') {
            return None;
        }
        names.push(quoted(&mut rest)?);
        blanks(&mut rest);
        if rest.next().is_some_and(|next| next != ',') {
            return None;
        }
        blanks(&mut rest);
    }
    (!names.is_empty()).then(|| Labels::of(names))
}

fn blanks(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(|next| *next == ' ').is_some() {}
}

/// A text in quotes that is not empty, after blanks.
fn quoted(rest: &mut Peekable<Chars<'_>>) -> Option<String> {
    blanks(rest);
    let quote = rest.next_if(|next| matches!(next, '\'' | '"'))?;
    let mut name = String::new();
    loop {
        match rest.next()? {
            end if end == quote => break,
            '\\' => name.push(rest.next_if(|next| matches!(next, '\\' | '\'' | '"'))?),
            next => name.push(next),
        }
    }
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::onnx::metadata::testing::model, models::testing::source, tasks::testing::signature};
    use proptest::prelude::*;

    type Outputs<'a> = &'a [(&'a str, &'a [i64])];

    /// The detector of a file with these entries and outputs, under these lines of `[detect]`.
    fn completed(lines: &str, entries: &[(&str, &str)], outputs: Outputs<'_>) -> Result<Detect, String> {
        let source = source("m", "1", &format!("task = \"detect\"\n[detect]\n{lines}"));
        let outline = outline(entries);
        let (task, labels) = complete(&source, &signature(outputs), &outline)?;
        task.clone().resolve(&signature(outputs), &labels, None, true)?;
        let Task::Detect(detect) = task else { panic!("expected a detector") };
        Ok(*detect)
    }

    /// The outline of a file with these entries.
    fn outline(entries: &[(&str, &str)]) -> Outline {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let entries: Vec<_> = entries.iter().map(|(key, value)| (*key, value.as_bytes())).collect();
        std::fs::write(&path, model(&entries)).unwrap();
        Outline::of(&path).unwrap()
    }

    const PETS: (&str, &str) = ("names", "{0: 'cat', 1: 'dog'}");
    const SORTED: (&str, &str) = ("end2end", "True");

    #[test]
    fn rows_that_the_file_says_the_network_has_sorted_out_need_no_format() {
        let check = |task: &str, entries: &[(&str, &str)], outputs: Outputs<'_>| {
            let entries = [&[("task", task), PETS], entries].concat();
            let detect = completed("", &entries, outputs).unwrap();
            assert_eq!((detect.format, detect.iou_max()), (Some(Format::End2end), 1.0), "{entries:?}");
        };
        let rows: Outputs<'_> = &[("output0", &[1, 300, 6])];
        check("detect", &[SORTED], rows);
        check("detect", &[("end2end", "False"), ("args", "{'batch': 1, 'nms': True}")], rows);
        check("detect", &[("description", "Ultralytics YOLOv10n model trained on coco.yaml")], rows);
        // As many rows as channels of anchors, and rows that the file leaves open.
        check("detect", &[SORTED], &[("output0", &[-1, 6, 6])]);
        check("detect", &[SORTED], &[("output0", &[-1, -1, 6])]);
        check("obb", &[SORTED], &[("output0", &[-1, 300, 7])]);
        check("pose", &[SORTED, ("kpt_shape", "[17, 3]")], &[("output0", &[-1, 300, 57])]);
        let masks: Outputs<'_> = &[("output0", &[-1, 300, 38]), ("output1", &[-1, 32, 160, 160])];
        check("segment", &[SORTED], masks);
    }

    #[test]
    fn rows_are_not_taken_for_sorted_out_where_the_file_or_the_manifest_says_something_else() {
        let rows: Outputs<'_> = &[("output0", &[1, 300, 6])];
        let check = |lines: &str, entries: &[(&str, &str)], outputs: Outputs<'_>| {
            completed(lines, &[&[("task", "detect"), PETS], entries].concat(), outputs)
        };
        for entries in [
            &[][..],
            &[("end2end", "False"), ("args", "{'nms': False}")],
            &[SORTED, ("description", "Ultralytics rtdetr-l model")],
            &[SORTED, ("head", "RTDETRDecoder")],
        ] {
            let error = check("", entries, rows).unwrap_err();
            assert!(error.contains("set detect.format"), "{error}");
        }
        // The shape is that of anchors.
        let anchors: Outputs<'_> = &[("output0", &[1, 6, 8400])];
        assert_eq!(check("", &[SORTED], anchors).unwrap().format, None);
        let format = check("format = \"yolo\"", &[SORTED], rows).map(|detect| detect.format);
        assert_eq!(format, Ok(Some(Format::Yolo)));
        let iou_max = check("iou_max = 0.5", &[SORTED], rows).map(|detect| detect.iou_max());
        assert_eq!(iou_max, Ok(0.5));
    }

    #[test]
    fn the_angle_of_turned_boxes_cannot_be_denied() {
        let turned = [("task", "obb"), PETS];
        for outputs in [&[("output0", &[1, 7, 8400][..])], &[("output0", &[1, 300, 7][..])]] {
            let error = completed("angle = false", &turned, outputs).unwrap_err();
            assert!(
                error.starts_with("detect.angle is false, but the file says that it is a YOLO for obb"),
                "{error}"
            );
        }
        let anchors: Outputs<'_> = &[("output0", &[1, 7, 8400])];
        assert_eq!(completed("", &turned, anchors).unwrap().angle, Some(true));
        assert_eq!(completed("angle = true", &turned, anchors).unwrap().angle, Some(true));
        // Of a file for upright boxes it says nothing new.
        let upright: Outputs<'_> = &[("output0", &[1, 6, 8400])];
        assert!(completed("angle = false", &[("task", "detect"), PETS], upright).is_ok());
    }

    #[test]
    fn the_size_of_the_export_is_height_and_width() {
        let size = |text: &str| {
            let outline = outline(&[("task", "detect"), PETS, ("imgsz", text)]);
            usual(&source("m", "1", "task = \"detect\"").manifest.task, &outline).size
        };
        assert_eq!(size("[96, 160]"), Some([160, 96]));
        assert_eq!(size("[640,640]"), Some([640, 640]));
        for other in ["", "640", "[96]", "[96, 160, 3]", "[0, 160]", "[96, 16385]", "[-96, 160]", "(96, 160)"]
        {
            assert_eq!(size(other), None, "{other}");
        }
        let other = outline(&[("task", "other"), PETS, ("imgsz", "[96, 160]")]);
        assert_eq!(usual(&Task::Tensors, &other), Usual::default());
    }

    #[test]
    fn a_file_of_instances_gives_no_class_of_each_pixel() {
        let check = |word: &str, lines: &str, outputs: Outputs<'_>| {
            let source = source("m", "1", &format!("task = \"segment\"\n{lines}"));
            complete(&source, &signature(outputs), &outline(&[("task", word), PETS])).map(|_| ())
        };
        let both: Outputs<'_> = &[("output0", &[1, 38, 8400]), ("output1", &[1, 32, 160, 160])];
        let chosen = |output: &str| format!("[segment]\noutput = {output:?}");
        for lines in [String::new(), chosen("output0"), chosen("output1")] {
            let error = check("segment", &lines, both).unwrap_err();
            assert!(error.ends_with("serve it with task = \"detect\""), "{error}");
        }
        // Another file, and one to which somebody has added an output.
        assert_eq!(check("semantic", "", both), Ok(()));
        assert_eq!(check("segment", &chosen("mask"), &[both, &[("mask", &[1, 160, 160])]].concat()), Ok(()));
        assert_eq!(check("segment", "", &[("mask", &[1, 160, 160])]), Ok(()));
    }

    #[test]
    fn networks_for_classes_of_pixels_take_images_as_detectors_do() {
        let check = |word: &str, task: &str, labels: usize, lines: Option<&str>| {
            let source = source("m", "1", &format!("task = {task:?}"));
            let outline = outline(&[("task", word), PETS]);
            let (_, names) = complete(&source, &signature(&[("output0", &[1, 64, 96])]), &outline).unwrap();
            let usual = usual(&source.manifest.task, &outline);
            let told = usual.told(source.manifest.input.as_ref().unwrap());
            assert_eq!((names.len(), told.as_deref()), (labels, lines), "{word} {task}");
            assert_eq!(usual.is_letterboxed, lines.is_some());
        };
        let lines = Some("resize = \"letterbox\", mean = 0, std = 1");
        check("semantic", "segment", 2, lines);
        // Ultralytics stretches images for depths, as is the default of pictures.
        check("depth", "image", 0, None);
        check("semantic", "image", 0, None);
        check("depth", "segment", 0, None);
        check("classify", "classify", 2, None);
        let stretched =
            Manifest::parse("task = \"segment\"\n[input]\nresize = \"stretch\"\nmean = 0.5").unwrap();
        let usual = usual(&stretched.task, &outline(&[("task", "semantic"), PETS]));
        assert_eq!(usual.told(&stretched.input.unwrap()).as_deref(), Some("std = 1"));
    }

    #[test]
    fn names_are_read_as_python_writes_them() {
        let names = |text: &str| {
            let labels = names_of(text)?;
            Some(labels.iter().map(ToString::to_string).collect::<Vec<_>>().join("|"))
        };
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(
            names("{0: 'person', 1: \"trainer's\", 2: 'a, b: {c}'}"),
            is("person|trainer's|a, b: {c}")
        );
        assert_eq!(names(r#"{0: 'both \' and "', 1: 'back\\slash'}"#), is("both ' and \"|back\\slash"));
        assert_eq!(names("{0:'f\u{e4}n',}"), is("f\u{e4}n"));
        for wrong in [
            "",
            "{}",
            "[]",
            "['a']",
            "{0: 'a'",
            "{1: 'a'}",
            "{0: 'a', 0: 'b'}",
            "{0: 'a', 2: 'b'}",
            "{0: 'a' 1: 'b'}",
            "{0: 'a}",
            "{0: a}",
            "{0: ''}",
            "{0: ' '}",
            "{'0': 'a'}",
            "{0: 'a\\x00'}",
            "{-1: 'a'}",
            "{0: __import__('os')}",
            "{99999999999999999999: 'a'}",
            "{0: 'a\\",
            "{: 'a'}",
        ] {
            assert_eq!(names(wrong), None, "{wrong}");
        }
        let many = |count: usize| {
            let each: Vec<_> = (0..count).map(|number| format!("{number}: 'x'")).collect();
            names_of(&format!("{{{}}}", each.join(", "))).map(|labels| labels.len())
        };
        assert_eq!((many(CLASSES_MAX), many(CLASSES_MAX + 1)), (Some(CLASSES_MAX), None));
    }

    proptest! {
        #[test]
        fn any_text_gives_an_answer(text in "[{}0-9:'\"\\\\, a-z\u{e4}]{0,60}") {
            let _ = names_of(&text);
        }
    }
}
