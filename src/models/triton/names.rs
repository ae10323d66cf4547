//! Names of members in a configuration's JSON. Protocol Buffers allow two for each: as in the definition (`max_batch_size`), and in
//! lowerCamelCase (`maxBatchSize`), which the Go and Java libraries write. The server uses those of the definition.

use prost_reflect::{FieldDescriptor, MessageDescriptor};
use serde_json::{Map, Value};

/// Renames every member of a message as in its definition. Keys of maps stay unchanged, and so do unknown members, which later code
/// refuses.
///
/// # Errors
/// A member that is present by both of its names.
pub(super) fn as_defined(
    definition: &MessageDescriptor,
    members: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let mut named = Map::new();
    for (written, value) in members {
        let field = definition.get_field_by_json_name(&written);
        let Some(field) = field.or_else(|| definition.get_field_by_name(&written)) else {
            named.insert(written, value);
            continue;
        };
        if named.insert(field.name().to_owned(), value_of(&field, value)?).is_some() {
            let (one, other) = (field.name(), field.json_name());
            return Err(format!("{one} is there twice, also as {other}: say it by one of its names"));
        }
    }
    Ok(named)
}

fn value_of(field: &FieldDescriptor, value: Value) -> Result<Value, String> {
    let kind = field.kind();
    let Some(definition) = kind.as_message() else { return Ok(value) };
    let within = |value| match value {
        Value::Object(members) => as_defined(definition, members).map(Value::Object),
        other => Ok(other),
    };
    match value {
        Value::Object(entries) if field.is_map() => {
            let of = definition.map_entry_value_field();
            let entries = entries.into_iter().map(|(key, value)| Ok((key, value_of(&of, value)?)));
            entries.collect::<Result<_, String>>().map(Value::Object)
        }
        Value::Array(values) => values.into_iter().map(within).collect::<Result<_, _>>().map(Value::Array),
        value => within(value),
    }
}
