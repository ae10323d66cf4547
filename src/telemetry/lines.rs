//! Formats events as lines. Values may come from callers, so nothing in them may end a line or control a terminal.
//!
//! JSON lines are `{"timestamp","level","target","message","fields":{…},"spans":[{"name","fields":{…}},…]}`, spans from the
//! outermost in. Empty `fields` and `spans` are left out.

use crate::words::{causes, is_unsafe};
use serde_json::{Map, Value, json};
use std::{
    error::Error,
    fmt::{self, Write as _},
    io::Write as _,
};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    field::RecordFields,
    fmt::{
        FormatFields, MakeWriter,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    layer::Context,
    registry::{LookupSpan, Scope},
};

/// Whether a text consists only of visible ASCII characters and blanks, none of which is unsafe. A fast path: most texts do.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Writes text with unsafe characters escaped as Rust writes them.
struct Escape<W>(W);

impl<W: fmt::Write> fmt::Write for Escape<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if is_plain(text) {
            return self.0.write_str(text);
        }
        let mut rest = text;
        while let Some(at) = rest.find(is_unsafe) {
            self.0.write_str(&rest[..at])?;
            let c = rest[at..].chars().next().expect("find found it");
            write!(self.0, "{}", c.escape_default())?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// Fields as `name=value`, for people. The message has no name.
pub(super) struct HumanFields;

impl<'w> FormatFields<'w> for HumanFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visit = HumanVisit { out: writer, first: true, result: Ok(()) };
        fields.record(&mut visit);
        visit.result
    }
}

struct HumanVisit<'w> {
    out: Writer<'w>,
    first: bool,
    result: fmt::Result,
}

impl HumanVisit<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Fields of the `log` crate's events that repeat their location; the target already shows it.
        if self.result.is_err() || field.name().starts_with("log.") {
            return;
        }
        self.result = (|| {
            if !self.first {
                self.out.write_char(' ')?;
            }
            self.first = false;
            match (field.name(), self.out.has_ansi_escapes()) {
                ("message", _) => {}
                (name, true) => write!(self.out, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
                (name, false) => write!(self.out, "{name}=")?,
            }
            Escape(&mut self.out).write_fmt(value)
        })();
    }
}

impl Visit for HumanVisit<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.write(field, format_args!("{value}")),
            // As below, without examining each character.
            _ if is_plain(value) && !value.contains(['"', '\\']) => {
                self.write(field, format_args!("\"{value}\""));
            }
            _ => self.write(field, format_args!("{value:?}")),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.write(field, format_args!("{:?}", causes(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write(field, format_args!("{value:?}"));
    }
}

/// Fields as JSON values, each once. Every request has some, but most are never written.
#[derive(Debug, Default)]
pub(super) struct JsonFields(Vec<(&'static str, Value)>);

impl JsonFields {
    fn set(&mut self, field: &Field, value: Value) {
        let name = field.name();
        if name.starts_with("log.") {
            return;
        }
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    /// The text of a field, if it has one.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.as_str())
    }

    /// As an object; `None` without any.
    fn object(&self) -> Option<Value> {
        let members = self.0.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        (!self.0.is_empty()).then(|| members.collect())
    }
}

impl Visit for JsonFields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no NaN and no infinities.
        let number = serde_json::Number::from_f64(value);
        self.set(field, number.map_or_else(|| value.to_string().into(), Value::Number));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.set(field, causes(value).into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}").into());
    }
}

/// Keeps the fields of open spans as JSON, for the layers above it.
pub(super) struct KeepFields;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for KeepFields {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = JsonFields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<JsonFields>()
        {
            values.record(fields);
        }
    }
}

/// The current time, as `YYYY-MM-DDTHH:MM:SS.ffffffZ`.
pub(super) fn timestamp() -> String {
    let mut timestamp = String::new();
    // Writing into a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    timestamp
}

/// An event as a JSON line, with its line break.
pub(super) fn json_line<S: Subscriber + for<'a> LookupSpan<'a>>(
    event: &Event<'_>,
    mut fields: JsonFields,
    context: &Context<'_, S>,
) -> String {
    let mut line = Map::new();
    line.insert("timestamp".into(), timestamp().into());
    line.insert("level".into(), event.metadata().level().as_str().into());
    line.insert("target".into(), event.metadata().target().into());
    if let Some(at) = fields.0.iter().position(|(name, _)| *name == "message") {
        line.insert("message".into(), fields.0.swap_remove(at).1);
    }
    line.extend(fields.object().map(|fields| ("fields".to_owned(), fields)));
    let spans: Vec<_> = (context.event_scope(event).into_iter())
        .flat_map(Scope::from_root)
        .map(|span| {
            let extensions = span.extensions();
            match extensions.get().and_then(JsonFields::object) {
                Some(fields) => json!({"name": span.name(), "fields": fields}),
                None => json!({"name": span.name()}),
            }
        })
        .collect();
    if !spans.is_empty() {
        line.insert("spans".into(), spans.into());
    }
    let text = Value::Object(line).to_string();
    let mut escaped = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        // JSON does not require these to be escaped, but a viewer may act on them. All are in the basic multilingual plane.
        match is_unsafe(c) {
            true => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(c));
            }
            false => escaped.push(c),
        }
    }
    escaped.push('\n');
    escaped
}

/// Writes every event as a JSON line.
pub(super) struct JsonLines<W>(pub(super) W);

impl<S, W> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = JsonFields::default();
        event.record(&mut fields);
        let line = json_line(event, fields, &context);
        // If the log itself cannot be written, there is nowhere to report that.
        let _ = self.0.make_writer().write_all(line.as_bytes());
    }
}
