//! What an Ultralytics export says of itself in its file: what it is for, its classes, and what follows each box.

use super::{Engine, Manifest, Source, manifest::KEYPOINTS_MAX};
use crate::{
    engine::{Signature, onnx::metadata},
    tasks::{Detect, Format, Keypoints, Labels, Task},
};
use std::{iter::Peekable, str::Chars, sync::Arc};

/// More classes are no list of classes.
const CLASSES_MAX: usize = 65_536;
/// Where the prototypes of masks are.
const PROTOTYPES: &str = "output1";

/// The task and the labels of a model: what its manifest leaves open is as its file says, and the log tells it. If there is no manifest,
/// the log says which line makes the file take images.
pub(super) fn complete(source: &Source, signature: &Signature) -> (Task, Arc<Labels>) {
    let Source { name, version, manifest, labels, .. } = source;
    let (mut task, mut labels) = (manifest.task.clone(), Arc::clone(labels));
    if manifest.engine != Engine::Onnx || manifest.declared.is_some() {
        return (task, labels);
    }
    let Some(said) = Said::of(source) else { return (task, labels) };
    let word = said.word;
    if *manifest == Manifest::default() {
        tracing::info!(
            model = name,
            version,
            "the file says that it is a YOLO for {word}: it takes images with the line task = {:?} in its model.toml",
            said.task()
        );
    }
    if task.name() != said.task() {
        return (task, labels);
    }
    let line = match &mut task {
        Task::Detect(detect) => said.fill(detect, signature),
        _ => None,
    };
    let own = labels.is_empty() && !said.labels.is_empty();
    let names = own.then(|| format!("{} labels", said.labels.len()));
    if own {
        labels = Arc::new(said.labels);
    }
    let taken: Vec<String> = names.into_iter().chain(line).collect();
    if !taken.is_empty() {
        let taken = taken.join(", ");
        tracing::info!(
            model = name,
            version,
            "taken from the file, which says that it is a YOLO for {word}: {taken}"
        );
    }
    (task, labels)
}

/// What such a file says.
struct Said {
    word: &'static str,
    of: Of,
    labels: Labels,
    keypoints: Option<usize>,
}

/// What it is for.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Classify,
    Detect,
    Segment,
    Pose,
    Obb,
}

/// The words for it in a file.
const ALL: [(&str, Of); 5] = [
    ("classify", Of::Classify),
    ("detect", Of::Detect),
    ("segment", Of::Segment),
    ("pose", Of::Pose),
    ("obb", Of::Obb),
];

impl Said {
    /// What a model's file says; `None` if it is no such export. Names of classes that cannot be read are left out, and the log says so.
    fn of(source: &Source) -> Option<Said> {
        let [task, names, keypoints] = metadata::values(&source.path, ["task", "names", "kpt_shape"]);
        let (of, names) = (task?.ok()?, names?);
        let (word, of) = ALL.into_iter().find(|(word, _)| *word == of)?;
        let labels = names.and_then(|text| names_of(&text).ok_or("it is no {0: 'name', 1: …}".to_owned()));
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
        Some(Said { word, of, labels, keypoints })
    }

    /// The task in a manifest.
    fn task(&self) -> &'static str {
        if self.of == Of::Classify { "classify" } else { "detect" }
    }

    /// Fills in what a detector's manifest leaves open of what follows each box. Returns the line that says the same.
    fn fill(&self, detect: &mut Detect, signature: &Signature) -> Option<String> {
        let told = detect.keypoints.is_some() || detect.masks.is_some() || detect.angle;
        if told || detect.columns.is_some() || detect.format == Some(Format::Boxes) {
            return None;
        }
        match self.of {
            Of::Pose => {
                let count = self.keypoints?;
                detect.keypoints = Some(Keypoints { count, names: Labels::default() });
                Some(format!("keypoints = {count}"))
            }
            Of::Obb => {
                detect.angle = true;
                Some("angle = true".to_owned())
            }
            Of::Segment => {
                signature.outputs.iter().find(|output| output.name == PROTOTYPES)?;
                detect.masks = Some(PROTOTYPES.to_owned());
                Some(format!("masks = {PROTOTYPES:?}"))
            }
            Of::Classify | Of::Detect => None,
        }
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
    use proptest::prelude::*;

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
