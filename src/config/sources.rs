//! Reads the three sources into texts with their origins. Reports what is unknown or not text;
//! [`Kind::parse`](super::Kind) interprets the texts.

use super::{
    mistake::{Mistake, Origin},
    table::{OPTIONS, Spec},
};
use crate::words::{meant, printable};
use std::{ffi::OsString, path::Path};
use toml::de::{DeTable, DeValue};

/// Variables with the prefix that are not options: `OCELLI_CONFIG` names the file, `OCELLI_COMMIT` is read by the
/// build, `OCELLI_BLESS` and `OCELLI_CRDS` by the tests, and `OCELLI_IMAGE` by `deploy/compose.yaml`.
const OTHER_VARIABLES: [&str; 5] =
    ["OCELLI_CONFIG", "OCELLI_COMMIT", "OCELLI_BLESS", "OCELLI_CRDS", "OCELLI_IMAGE"];

/// A larger file is not a configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A value given for an option.
pub(super) struct GivenValue {
    /// Its index in [`OPTIONS`].
    pub(super) option: usize,
    pub(super) text: Result<String, Refused>,
    pub(super) origin: Origin,
}

/// Why a value is refused.
pub(super) struct Refused {
    /// As a mistake shows it.
    pub(super) found: String,
    pub(super) reason: String,
}

/// Reads a configuration file.
pub(super) fn file(path: &Path, given: &mut Vec<GivenValue>, mistakes: &mut Vec<Mistake>) {
    let at = |line| Origin::File { path: path.into(), line };
    let mut refuse = |line, found: String, reason: String| {
        mistakes.push(Mistake { origin: at(line), found, reason });
    };
    let text = match read(path) {
        Ok(text) => text,
        Err(reason) => return refuse(0, String::new(), reason),
    };
    let line = |offset: usize| 1 + text[..offset.min(text.len())].matches('\n').count();
    // Parsing continues after a syntax error, so that all mistakes can be reported.
    let (table, errors) = DeTable::parse_recoverable(&text);
    let broken: Vec<usize> =
        errors.iter().map(|error| error.span().map_or(0, |span| line(span.start))).collect();
    for (error, line) in errors.iter().zip(&broken) {
        let key = error.span().and_then(|span| text.get(span)).filter(|_| error.message() == "duplicate key");
        refuse(*line, key.map(printable).unwrap_or_default(), printable(error.message()));
    }
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let line = line(key.span().start);
        // The parser's recovery of a line with a syntax error is not what the author meant.
        if broken.contains(&line) {
            continue;
        }
        let name: &str = key.get_ref();
        let Some(option) = OPTIONS.iter().position(|spec| spec.name == name) else {
            let nearest = meant(name, OPTIONS.iter().map(|spec| spec.name));
            let table = match value.get_ref() {
                DeValue::Table(_) => "; options stand at the top, outside of tables",
                _ => "",
            };
            refuse(line, printable(name), format!("unknown option{nearest}{table}"));
            continue;
        };
        let text = toml_text(&OPTIONS[option], value.get_ref());
        let text = text.map_err(|reason| Refused { found: name.to_owned(), reason });
        given.push(GivenValue { option, text, origin: at(line) });
    }
}

fn read(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("is larger than {FILE_BYTES_MAX} bytes: not a configuration"));
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("is not UTF-8 at byte {}", error.utf8_error().valid_up_to() + 1))
}

/// The text that a TOML value stands for, if its type is the option's.
fn toml_text(spec: &Spec, value: &DeValue<'_>) -> Result<String, String> {
    let bytes = matches!(spec.kind, super::Kind::Bytes { .. });
    let number = spec.kind.is_number();
    match value {
        DeValue::Integer(integer) if number || bytes => {
            match i64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(number) => Ok(number.to_string()),
                // Larger than any range: the kind reports that.
                Err(_) => Ok(integer.as_str().to_string()),
            }
        }
        DeValue::Float(float) if matches!(spec.kind, super::Kind::Ratio) => Ok(float.as_str().to_string()),
        DeValue::String(text) if !number => Ok(text.to_string()),
        DeValue::String(text) => {
            Err(format!("is text ({text:?}): must be {}, without quotes", spec.kind.allowed()))
        }
        value => Err(format!(
            "is of type {}: must be {}{}",
            value.type_str(),
            spec.kind.allowed(),
            if number || bytes { "" } else { ", in quotes" }
        )),
    }
}

/// Reads the environment. Every variable that begins with `OCELLI_` must be known.
pub(super) fn environment(
    variables: &[(OsString, OsString)],
    given: &mut Vec<GivenValue>,
    mistakes: &mut Vec<Mistake>,
) {
    let mut ours: Vec<_> = variables
        .iter()
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(b"OCELLI_"))
        .map(|(name, value)| (name.to_string_lossy(), value))
        .filter(|(name, value)| {
            !OTHER_VARIABLES.contains(&name.as_ref()) && !is_service_link(name, &value.to_string_lossy())
        })
        .collect();
    // The order of an environment is arbitrary; use the table's.
    ours.sort_by_key(|(name, _)| {
        let option = OPTIONS.iter().position(|spec| spec.variable() == *name);
        (option.unwrap_or(OPTIONS.len()), name.clone())
    });
    for (name, value) in ours {
        let origin = Origin::Variable(name.to_string());
        let Some(option) = OPTIONS.iter().position(|spec| spec.variable() == name) else {
            let names = OPTIONS.iter().map(Spec::variable).chain([OTHER_VARIABLES[0].to_string()]);
            mistakes.push(Mistake {
                origin,
                found: String::new(),
                reason: format!("unknown variable{}", meant(&name, names)),
            });
            continue;
        };
        given.push(GivenValue { option, text: text(option, value), origin });
    }
}

/// Takes the flags' values; their names were checked by the command line.
pub(super) fn flags(flags: &[(&'static str, OsString)], given: &mut Vec<GivenValue>) {
    for (name, value) in flags {
        let option =
            OPTIONS.iter().position(|spec| spec.name == *name).expect("flags are made from the table");
        let origin = Origin::Flag(format!("--{}", OPTIONS[option].flag()));
        given.push(GivenValue { option, text: text(option, value), origin });
    }
}

/// The text that a mistake quotes; if the value may be secret, only the option's name.
pub(super) fn found(spec: &Spec, value: &str, shown: String) -> String {
    // Not even a wrong secret is shown.
    if spec.kind.may_be_shown(value) { shown } else { spec.name.to_owned() }
}

fn text(option: usize, value: &OsString) -> Result<String, Refused> {
    value.to_str().map(str::to_owned).ok_or_else(|| Refused {
        found: found(&OPTIONS[option], &value.to_string_lossy(), format!("{value:?}")),
        reason: format!("is not UTF-8: must be {}", OPTIONS[option].kind.allowed()),
    })
}

/// Whether this is one of the variables that Kubernetes puts into every container for a Service whose name begins with
/// `ocelli` (`OCELLI_SERVICE_HOST`, `OCELLI_PORT=tcp://…`, `OCELLI_PORT_8000_TCP_ADDR`). They are no mistake of the
/// user's.
fn is_service_link(name: &str, value: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    if name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT_") || name.ends_with("_SERVICE_PORT") {
        return true;
    }
    if name.ends_with("_PORT") && value.contains("://") {
        return true;
    }
    let Some((_, rest)) = name.split_once("_PORT_") else {
        return false;
    };
    let mut words = rest.split('_');
    let port = words.next().unwrap_or_default();
    let protocol = words.next().unwrap_or_default();
    let end = words.next();
    port.parse::<u16>().is_ok()
        && PROTOCOLS.contains(&protocol)
        && matches!(end, None | Some("PORT" | "PROTO" | "ADDR"))
        && words.next().is_none()
}
