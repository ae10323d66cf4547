//! Enums with names, and helpers for human-readable messages: truncated values, errors with their causes, and suggestions for misspelt
//! names.

use std::error::Error;

/// An enum whose variants have names, in replies, metrics or settings; the names are in the order of output.
macro_rules! named {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All variants, in order.
            pub const ALL: [$name; [$($label),+].len()] = [$($name::$variant),+];
            /// Their names.
            pub const LABELS: [&str; [$($label),+].len()] = [$($label),+];

            /// The name.
            pub fn name(self) -> &'static str {
                $name::LABELS[self as usize]
            }

            /// The variant with that name.
            pub fn from_name(name: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|one| one.name() == name)
            }
        }
    };
}
pub(crate) use named;

/// Characters of a value that a message repeats: enough to recognise it.
const VALUE_CHARS_MAX: usize = 100;

/// Names longer than this are not compared with others: the time that a comparison takes grows with their length.
const NAME_BYTES_MAX: usize = 256;

/// Names less similar than this are not suggested.
const LIKENESS_MIN: f64 = 0.6;

/// The first [`VALUE_CHARS_MAX`] characters of a value of any length.
pub(crate) fn clipped(text: &str) -> &str {
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// Whether a character could end a line, control a terminal, or change the direction of the text around it.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// The text with [unsafe](is_unsafe) characters escaped: a name from outside must not forge lines on a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            c if is_unsafe(c) => c.escape_default().to_string(),
            c => c.to_string(),
        })
        .collect()
}

/// A number with its noun; `one` is the singular.
pub(crate) fn count(number: usize, one: &str) -> String {
    let end = match number {
        1 => "",
        _ if one.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {one}{end}")
}

/// An error with the chain of its sources: the outermost error often says only that something failed.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

/// The known names most similar to this one, best first, `at_most` of them. Case and the kind of dashes make no difference.
pub(crate) fn nearest<N: AsRef<str>>(
    name: &str,
    known: impl IntoIterator<Item = N>,
    at_most: usize,
) -> Vec<String> {
    if name.len() > NAME_BYTES_MAX {
        return Vec::new();
    }
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let wanted = plain(name);
    let likeness = |known: &N| strsim::normalized_damerau_levenshtein(&wanted, &plain(known.as_ref()));
    let mut near: Vec<(f64, N)> = known
        .into_iter()
        .map(|known| (likeness(&known), known))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .collect();
    near.sort_by(|(a, left), (b, right)| b.total_cmp(a).then(left.as_ref().cmp(right.as_ref())));
    near.into_iter().take(at_most).map(|(_, name)| name.as_ref().to_owned()).collect()
}

/// "; nearest: NAME", for the end of a message; empty where no known name is similar to this one.
pub(crate) fn meant<N: AsRef<str>>(name: &str, known: impl IntoIterator<Item = N>) -> String {
    told(&nearest(name, known, 1))
}

/// "; nearest: A, B", for the end of a message; empty where there are no names.
pub(crate) fn told(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        names => format!("; nearest: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cut_between_characters() {
        assert_eq!(clipped("short"), "short");
        assert_eq!(clipped(&"é".repeat(101)), "é".repeat(100));
    }

    #[test]
    fn one_is_not_told_as_many() {
        assert_eq!([0, 1, 2].map(|number| count(number, "job")), ["0 jobs", "1 job", "2 jobs"]);
        assert_eq!([1, 2].map(|number| count(number, "process")), ["1 process", "2 processes"]);
    }

    #[test]
    fn what_drives_a_terminal_or_turns_text_around_is_escaped() {
        assert_eq!(printable("a\u{1b}[2J\n\u{202e}é\u{2066}"), "a\\u{1b}[2J\\n\\u{202e}é\\u{2066}");
    }

    #[test]
    fn names_that_may_have_been_meant_are_told_best_first() {
        let known = ["top_k", "mask", "top"];
        assert_eq!(meant("topk", known), "; nearest: top_k");
        assert_eq!(meant("TOP-K", known), "; nearest: top_k");
        assert_eq!(meant("amsk", known), "; nearest: mask");
        assert_eq!(meant("format", known), "");
        assert_eq!(told(&nearest("topk", known, 3)), "; nearest: top_k, top");
        assert_eq!(meant(&"x".repeat(100_000), ["x".repeat(100_000)]), "");
    }
}
