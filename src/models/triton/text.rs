//! From the text of a `config.pbtxt` to its message: Protocol Buffers' text format, read by a library.

use crate::{protocol, words::meant};
use miette::Diagnostic;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor,
    prost_types::{FileDescriptorSet, OneofDescriptorProto},
    text_format::ParseError,
};
use std::sync::LazyLock;

/// Messages within messages. A configuration has some five; the library reads each by calling itself, and a stack has an end.
const DEPTH_MAX: usize = 64;

/// The field of which 0 says something where it is written.
pub(super) const MAX_BATCH_SIZE: &str = "max_batch_size";

/// The definition of what a `config.pbtxt` may say. It is Triton's, but for one thing: a `max_batch_size` of 0 that is written is told
/// apart from one that is not.
pub(super) fn definition() -> MessageDescriptor {
    static DEFINITION: LazyLock<MessageDescriptor> = LazyLock::new(|| {
        const BUILT: &str = "the build wrote the definitions";
        let mut files = FileDescriptorSet::decode(protocol::DESCRIPTORS).expect(BUILT);
        let mut messages = files.file.iter_mut().flat_map(|file| &mut file.message_type);
        let config = messages.find(|message| message.name() == "ModelConfig").expect(BUILT);
        let field = config.field.iter_mut().find(|field| field.name() == MAX_BATCH_SIZE).expect(BUILT);
        // As `optional` in the definition would: in a choice of its own, behind all others.
        field.proto3_optional = Some(true);
        field.oneof_index = i32::try_from(config.oneof_decl.len()).ok();
        let name = Some(format!("_{MAX_BATCH_SIZE}"));
        config.oneof_decl.push(OneofDescriptorProto { name, options: None });
        let pool = DescriptorPool::from_file_descriptor_set(files).expect(BUILT);
        pool.get_message_by_name("inference.ModelConfig").expect(BUILT)
    });
    DEFINITION.clone()
}

/// Reads the text.
///
/// # Errors
/// The first mistake with its line: syntax, a field or word that does not exist, a value outside its type; before any of these, messages
/// that are nested too deeply.
pub(super) fn parse(text: &str) -> Result<DynamicMessage, String> {
    // What some editors begin a file with is no part of its text.
    let text = with_colons(text.trim_start_matches('\u{feff}'))?;
    DynamicMessage::parse_text_format(definition(), &text).map_err(|error| told(&text, &error))
}

/// Puts a colon between a name and a list, as in `input [ { ... } ]`: most files leave it out, which the format allows for
/// lists of messages and the library does not know. Lines stay what they are.
///
/// # Errors
/// More messages within messages than [`DEPTH_MAX`].
fn with_colons(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len() + 16);
    let mut depth = 0_usize;
    // The quote of the string that we are in; the end of the last word, if only blanks and comments followed.
    let (mut quote, mut escaped, mut comment, mut word) = (None, false, false, None);
    for character in text.chars() {
        if comment {
            comment = character != '\n';
        } else if let Some(open) = quote {
            if !escaped && (character == open || character == '\n') {
                quote = None;
            }
            escaped = !escaped && character == '\\';
        } else {
            match character {
                '#' => comment = true,
                '"' | '\'' => (quote, escaped, word) = (Some(character), false, None),
                '[' => {
                    if let Some(end) = word.take() {
                        out.insert(end, ':');
                    }
                }
                c if c.is_alphanumeric() || c == '_' => word = Some(out.len() + c.len_utf8()),
                c if c.is_whitespace() => {}
                c => {
                    word = None;
                    match c {
                        '{' | '<' => depth += 1,
                        '}' | '>' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                }
            }
            if depth > DEPTH_MAX {
                let line = line_of(out.as_bytes());
                return Err(format!(
                    "line {line}: messages are nested more deeply than the limit of {DEPTH_MAX}"
                ));
            }
        }
        out.push(character);
    }
    Ok(out)
}

/// The line that is next behind a text.
fn line_of(before: &[u8]) -> usize {
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

fn told(text: &str, error: &ParseError) -> String {
    // Without a place it is the end of the text.
    let at = error.labels().and_then(|mut labels| labels.next()).map_or(text.len(), |label| label.offset());
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    let line = line_of(before);
    let message: String = error.to_string().chars().take(300).collect();
    format!(
        "line {line}: {}{}",
        message.replace("for message 'inference.", "for message '"),
        likely(&message)
    )
}

/// What a field or a word that there is not may have been meant to be. The library says which it is, and of what, in words alone.
fn likely(message: &str) -> String {
    let mut quoted = message.split('\'').skip(1).step_by(2);
    let (Some(name), Some(of)) = (quoted.next(), quoted.next()) else { return String::new() };
    let pool = definition().parent_pool().clone();
    match (pool.get_message_by_name(of), pool.get_enum_by_name(of)) {
        (Some(of), _) => meant(name, of.fields().map(|field| field.name().to_owned())),
        (None, Some(of)) => {
            // All words of a kind begin alike (`TYPE_`), which would make any two of them much alike.
            let rest = |word: &str| word.split_once('_').map_or(word, |(_, rest)| rest).to_owned();
            let words = of.values().map(|value| value.name().to_owned());
            meant(name, words.filter(|word| !meant(&rest(name), [rest(word)]).is_empty()))
        }
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_may_follow_its_name_without_a_colon() {
        let check = |text: &str, expected: &str| assert_eq!(with_colons(text).as_deref(), Ok(expected));
        check("input [ { dims [ 1 ] } ]", "input: [ { dims: [ 1 ] } ]");
        check("input # [\n\n[", "input: # [\n\n[");
        check("dims: [ 1 ]", "dims: [ 1 ]");
        check("a: \"b [ \\\" [\" c [", "a: \"b [ \\\" [\" c: [");
        check("a: 'b' [", "a: 'b' [");
        check("[ [ ] [", "[ [ ] [");
    }

    #[test]
    fn messages_within_messages_are_read_up_to_a_limit() {
        let told = |open: &str, depth: usize, close: &str| {
            parse(&format!("# {{\n{}{}", open.repeat(depth), close.repeat(depth))).expect_err("a mistake")
        };
        let any = "[type.googleapis.com/inference.ModelConfig] ";
        for (open, close) in [("{", "}"), ("<", ">")] {
            let deep = "line 2: messages are nested more deeply than the limit of 64";
            for depth in [DEPTH_MAX + 1, 20_000] {
                assert_eq!(told(&format!("{any}{open} "), depth, close), deep);
            }
            let other = told(&format!("{any}{open} "), DEPTH_MAX, close);
            assert!(!other.contains("nested"), "{other}");
        }
        // What is side by side is not within, and what is in a string opens nothing.
        let many = "parameters { key: \"{{<\" value { string_value: '<{' } }\n".repeat(DEPTH_MAX);
        assert!(parse(&many).is_ok());
    }
}
