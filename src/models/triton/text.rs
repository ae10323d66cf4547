//! Parses the text of a `config.pbtxt` into its message. A library reads the Protocol Buffers text format.

use crate::{protocol, words::meant};
use miette::Diagnostic;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor,
    prost_types::{FileDescriptorSet, OneofDescriptorProto},
    text_format::ParseError,
};
use std::sync::LazyLock;

/// Depth of nested messages, at most. A configuration needs about five. The library parses recursively, and the stack is limited.
const DEPTH_MAX: usize = 64;

/// The field for which an explicit 0 differs from a missing value.
pub(super) const MAX_BATCH_SIZE: &str = "max_batch_size";

/// The definition of a `config.pbtxt`. It is Triton's with one difference: an explicit `max_batch_size` of 0 is distinguished from a
/// missing one.
pub(super) fn definition() -> MessageDescriptor {
    static DEFINITION: LazyLock<MessageDescriptor> = LazyLock::new(|| {
        const BUILT: &str = "the build wrote the definitions";
        let mut files = FileDescriptorSet::decode(protocol::DESCRIPTORS).expect(BUILT);
        let mut messages = files.file.iter_mut().flat_map(|file| &mut file.message_type);
        let config = messages.find(|message| message.name() == "ModelConfig").expect(BUILT);
        let field = config.field.iter_mut().find(|field| field.name() == MAX_BATCH_SIZE).expect(BUILT);
        // What `optional` in the definition would do: a oneof of its own, after all others.
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
/// The first mistake with its line: a syntax error, a field or word that does not exist, a value outside its type. Messages that are
/// nested too deeply are reported before any of these.
pub(super) fn parse(text: &str) -> Result<DynamicMessage, String> {
    // Some editors begin a file with a byte order mark.
    let text = with_colons(text.trim_start_matches('\u{feff}'))?;
    DynamicMessage::parse_text_format(definition(), &text).map_err(|error| told(&text, &error))
}

/// Inserts a colon between a name and a list, as in `input [ { ... } ]`. Most files leave it out, which the format allows for lists of
/// messages but the library does not accept. Line numbers do not change.
///
/// # Errors
/// Messages nested deeper than [`DEPTH_MAX`].
fn with_colons(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len() + 16);
    let mut depth = 0_usize;
    // `quote`: the quote of the current string. `word`: the end of the last word, if only blanks and comments followed.
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

/// The number of the line on which the text after `before` continues.
fn line_of(before: &[u8]) -> usize {
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

fn told(text: &str, error: &ParseError) -> String {
    // An error without a position is at the end of the text.
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

/// Suggests what an unknown field or word may mean. The library names it, and where it belongs, only in its message.
fn likely(message: &str) -> String {
    let mut quoted = message.split('\'').skip(1).step_by(2);
    let (Some(name), Some(of)) = (quoted.next(), quoted.next()) else { return String::new() };
    let pool = definition().parent_pool().clone();
    match (pool.get_message_by_name(of), pool.get_enum_by_name(of)) {
        (Some(of), _) => meant(name, of.fields().map(|field| field.name().to_owned())),
        (None, Some(of)) => {
            // All words of a kind share a prefix (`TYPE_`), which would make any two of them similar.
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
        // Adjacent messages do not nest, and braces in a string do not open any.
        let many = "parameters { key: \"{{<\" value { string_value: '<{' } }\n".repeat(DEPTH_MAX);
        assert!(parse(&many).is_ok());
    }
}
