//! The kinds of option values: what is allowed, how text is parsed, how a value is written.

use std::{net::SocketAddr, path::PathBuf, time::Duration};
use tracing_subscriber::EnvFilter;

/// What an option takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// An IP address and a port; an empty text means none.
    Address,
    /// One or more addresses as above, separated by commas.
    Addresses,
    /// A path; with `empty`, an empty text is allowed, and the option's description says what it means.
    Path {
        /// Whether the empty text is allowed.
        empty: bool,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number in a range.
    Count {
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// A number of bytes in a range, written as a number or with a unit, such as `256MiB`.
    Bytes {
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// Whole milliseconds in a range.
    Millis {
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// A number of threads up to a maximum; 0 means one per core.
    Threads {
        /// The most allowed.
        max: u64,
    },
    /// Names separated by commas, `*` for all, or empty for none.
    Names,
    /// An address such as `http://HOST:PORT/PATH`, without TLS; empty for none.
    Url,
    /// A prefix for the paths of URLs, such as `/vision`; empty for none.
    BasePath,
    /// What somebody calls something, in 1 to 64 visible ASCII characters.
    Name,
    /// The name of a model ([`is_model_name`]); empty for none.
    ModelName,
    /// A number from 0 to 1.
    Ratio,
    /// A text that is never shown; empty for none.
    Secret,
    /// A log filter in the syntax of `tracing_subscriber::EnvFilter`.
    Filter,
}

/// A shorter secret could be guessed; one beyond the maximum is a mistake.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 256;

const NAME_BYTES_MAX: usize = 64;

/// Whether a model may have this name.
pub fn is_model_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(allowed)
}

/// What such a name must be, as the end of the sentence "must be …".
pub const MODEL_NAMES: &str = "1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit";

/// A checked value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Address(Option<SocketAddr>),
    Addresses(Vec<SocketAddr>),
    Path(PathBuf),
    Number(u64),
    Duration(Duration),
    Text(String),
    Real(f64),
}

impl Kind {
    /// What is allowed, as the end of the sentence "must be …".
    pub fn allowed(&self) -> String {
        match self {
            Kind::Address => {
                "an IP address and a port, such as 127.0.0.1:8000 or [::1]:8000, or empty for none".into()
            }
            Kind::Addresses => {
                "an IP address and a port, such as 127.0.0.1:8000 or [::1]:8000, or several separated by commas".into()
            }
            Kind::Names => "names separated by commas, * for all, or empty for none".into(),
            Kind::Url => "a URL, http://HOST:PORT or http://HOST:PORT/PATH (a port from 1 to 65535; no user, no ? and no #), or empty \
                          for none"
                .into(),
            Kind::BasePath => {
                "a path such as /vision or /teams/vision (parts of letters, digits, -, ., _ and ~; no slash at the end), or \
                 empty for none"
                    .into()
            }
            Kind::Name => format!("1 to {NAME_BYTES_MAX} visible ASCII characters, without spaces"),
            Kind::ModelName => format!("{MODEL_NAMES}, or empty for none"),
            Kind::Ratio => "a number from 0 to 1".into(),
            Kind::Secret => {
                format!("{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} visible ASCII characters, or empty for none")
            }
            Kind::Path { empty: false } => "a path".into(),
            Kind::Path { empty: true } => "a path, or empty".into(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Count { min, max } => format!("a whole number from {min} to {max}"),
            Kind::Bytes { min, max } => format!(
                "a number of bytes from {} to {}, plain or with a unit, such as 256MiB",
                bytes_text(*min),
                bytes_text(*max)
            ),
            Kind::Millis { min, max } => format!("whole milliseconds from {min} to {max}"),
            Kind::Threads { max } => {
                format!("a number of threads up to {max}, or 0 for one per core")
            }
            Kind::Filter => {
                "a log filter, such as info or warn,ocelli=debug (levels: error, warn, info, debug, trace, off)".into()
            }
        }
    }

    /// The placeholder for the value in usage lines.
    pub fn placeholder(&self) -> &'static str {
        match self {
            Kind::Address => "ADDRESS",
            Kind::Addresses => "ADDRESS,…",
            Kind::Names => "NAME,…",
            Kind::Name | Kind::ModelName => "NAME",
            Kind::Secret => "TOKEN",
            Kind::Url => "URL",
            Kind::Ratio => "RATIO",
            Kind::Path { .. } | Kind::BasePath => "PATH",
            Kind::Choice(_) => "WORD",
            Kind::Count { .. } | Kind::Threads { .. } => "N",
            Kind::Bytes { .. } => "BYTES",
            Kind::Millis { .. } => "MS",
            Kind::Filter => "FILTER",
        }
    }

    /// Whether the file writes this kind without quotes. A number of bytes may be written both ways.
    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Kind::Count { .. } | Kind::Millis { .. } | Kind::Threads { .. } | Kind::Ratio)
    }

    /// Whether output that may be passed on can contain the value. A token, or a URL that may contain a password, must not be
    /// shown.
    pub(crate) fn may_be_shown(&self, text: &str) -> bool {
        match self {
            Kind::Secret => false,
            Kind::Url => !text.contains('@'),
            _ => true,
        }
    }

    /// Parses `text`; a thread count of 0 becomes `cores`. The error says what is wrong, such as "must be one of auto, cpu, gpu".
    pub(crate) fn parse(&self, text: &str, cores: usize) -> Result<Value, String> {
        let refused = || format!("must be {}", self.allowed());
        let within = |number: u64, min: u64, max: u64| {
            if (min..=max).contains(&number) { Ok(number) } else { Err(refused()) }
        };
        let whole = || text.parse::<u64>().map_err(|_| refused());
        let text_if = |fine: bool| if fine { Ok(Value::Text(text.into())) } else { Err(refused()) };
        match self {
            Kind::Address if text.is_empty() => Ok(Value::Address(None)),
            Kind::Address => match text.parse() {
                Ok(address) => Ok(Value::Address(Some(address))),
                Err(_) => Err(refused()),
            },
            Kind::Addresses => {
                let addresses = text.split(',').map(|address| address.trim().parse().map_err(|_| refused()));
                Ok(Value::Addresses(addresses.collect::<Result<_, _>>()?))
            }
            Kind::Names => {
                let mut names = text.split(',').map(str::trim);
                text_if(matches!(text, "" | "*") || names.all(|name| !name.is_empty() && name != "*"))
            }
            Kind::Url => text_if(text.is_empty() || is_plain_http(text)),
            Kind::BasePath => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
                let fine = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(plain);
                let parts = text.strip_prefix('/');
                text_if(text.is_empty() || parts.is_some_and(|parts| parts.split('/').all(fine)))
            }
            Kind::Name => {
                let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
                text_if(visible && (1..=NAME_BYTES_MAX).contains(&text.len()))
            }
            Kind::ModelName => text_if(text.is_empty() || is_model_name(text)),
            Kind::Ratio => {
                let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
                ratio.map(Value::Real).ok_or_else(refused)
            }
            Kind::Secret => {
                let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
                let fits = text.is_empty() || (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&text.len());
                text_if(visible && fits)
            }
            Kind::Path { empty } => {
                // For the operating system a NUL ends the path, so a text with one is never what the user meant.
                if (text.is_empty() && !empty) || text.contains('\0') {
                    return Err(refused());
                }
                Ok(Value::Path(text.into()))
            }
            Kind::Choice(words) => text_if(words.contains(&text)),
            Kind::Count { min, max } => Ok(Value::Number(within(whole()?, *min, *max)?)),
            Kind::Bytes { min, max } => {
                let bytes = parse_bytes(text).ok_or_else(refused)?;
                Ok(Value::Number(within(bytes, *min, *max)?))
            }
            Kind::Millis { min, max } => {
                Ok(Value::Duration(Duration::from_millis(within(whole()?, *min, *max)?)))
            }
            Kind::Threads { max } => match within(whole()?, 0, *max)? {
                0 => Ok(Value::Number(cores as u64)),
                threads => Ok(Value::Number(threads)),
            },
            Kind::Filter => match filter_mistake(text) {
                Some(mistake) => Err(format!("{mistake}; must be {}", self.allowed())),
                None => Ok(Value::Text(directives(text).collect::<Vec<_>>().join(","))),
            },
        }
    }
}

/// Whether every part of a URL takes effect. A fragment, a query or a user would be ignored, and an invalid port replaced by the
/// default one.
fn is_plain_http(text: &str) -> bool {
    let Ok(uri) = text.parse::<http::Uri>() else { return false };
    let Some(authority) = uri.authority().map(http::uri::Authority::as_str) else { return false };
    // Colons in brackets belong to an IPv6 address.
    let port =
        authority[authority.rfind(']').map_or(0, |end| end + 1)..].split_once(':').map(|(_, port)| port);
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    uri.scheme_str() == Some("http")
        && uri.host().is_some_and(|host| !host.is_empty())
        && !authority.contains('@')
        && port.is_none_or(|port| digits(port) && port.parse::<u16>().is_ok_and(|port| port > 0))
        && !text.contains(['?', '#'])
}

/// Units of byte sizes with their factors, longest suffix first so that none hides another.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// `1073741824`, `1GiB`, `1 GiB` and `1gib` are the same; `1GB` is 10⁹. `None` if it is none of these or too large.
fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = unit.trim_start_matches(' ');
    let factor = match unit {
        "" => 1,
        unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// Bytes in the largest binary unit that divides them: `256MiB`, `1500`.
pub fn bytes_text(bytes: u64) -> String {
    let unit = UNITS[..4].iter().rev().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
    match unit {
        Some((name, factor)) => format!("{}{name}", bytes / factor),
        None => bytes.to_string(),
    }
}

/// The directives of a log filter, trimmed: `EnvFilter` would read a leading blank as part of a name.
fn directives(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// What is wrong with a log filter. `EnvFilter` accepts any text as a target, so `inof` or `info ocelli=debug` would be filters
/// that show nothing. Therefore a lone word that resembles a level, and characters that no target's name contains, are refused
/// here.
fn filter_mistake(text: &str) -> Option<String> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    if directives(text).next().is_none() {
        return Some("is empty".into());
    }
    for part in directives(text) {
        if let Err(error) = EnvFilter::builder().parse(part) {
            return Some(error.to_string());
        }
        let target = &part[..part.find(['=', '[']).unwrap_or(part.len())];
        let named =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
        if !target.is_empty() && !target.split("::").all(named) {
            return Some(format!(
                "{target:?} is not the name of a target (commas part what a filter consists of)"
            ));
        }
    }
    let words = directives(text)
        .filter(|word| word.chars().all(char::is_alphanumeric) && word.parse::<u8>().is_err());
    for word in words {
        let lower = word.to_lowercase();
        let level = LEVELS.iter().find(|level| {
            strsim::osa_distance(&lower, level) == 1 || (lower.starts_with(*level) && lower != **level)
        });
        if let Some(level) = level {
            return Some(format!(
                "{word:?} is not a level; nearest: {level} (for a target of that name, write {word}=trace)"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::needless_pass_by_value)] // expected values are made on the spot
    fn check(kind: Kind, text: &str, expected: Option<Value>) {
        let got = kind.parse(text, 6);
        match &expected {
            Some(value) => assert_eq!(got.as_ref(), Ok(value), "{text:?}"),
            None => {
                let message = got.expect_err(text);
                assert!(message.contains(&kind.allowed()), "{message:?} does not say what is allowed");
            }
        }
    }

    #[test]
    fn bytes_are_plain_or_with_a_unit() {
        let kind = Kind::Bytes { min: 1, max: u64::MAX };
        for (text, bytes) in [
            ("1500", 1500),
            ("1KiB", 1024),
            ("256MiB", 256 << 20),
            ("256 mib", 256 << 20),
            ("2GiB", 2 << 30),
            ("1TiB", 1 << 40),
            ("3kB", 3000),
            ("3GB", 3_000_000_000),
            ("7B", 7),
        ] {
            check(kind, text, Some(Value::Number(bytes)));
        }
        for text in ["", "GiB", "-1", "1.5GiB", "1GiBs", "0x10", "1 000", "99999999999TiB", "١KiB", "0"] {
            check(kind, text, None);
        }
    }

    #[test]
    fn bytes_are_written_so_that_they_read_back() {
        for bytes in [1, 1000, 1024, 1536, 1 << 20, 5 << 30, (1 << 40) + 1] {
            assert_eq!(parse_bytes(&bytes_text(bytes)), Some(bytes));
        }
        assert_eq!(bytes_text(256 << 20), "256MiB");
    }

    #[test]
    fn numbers_outside_their_range_are_refused_at_both_ends() {
        let kind = Kind::Count { min: 2, max: 9 };
        check(kind, "2", Some(Value::Number(2)));
        check(kind, "9", Some(Value::Number(9)));
        for text in ["1", "10", "-3", "", "2.0", "two", "99999999999999999999"] {
            check(kind, text, None);
        }
        let kind = Kind::Millis { min: 0, max: 10 };
        check(kind, "10", Some(Value::Duration(Duration::from_millis(10))));
        check(kind, "11", None);
        check(kind, "10ms", None);
    }

    #[test]
    fn addresses_are_plain_http_and_ratios_are_parts_of_one() {
        for text in ["", "http://127.0.0.1:4318", "http://collector/v1/traces"] {
            check(Kind::Url, text, Some(Value::Text(text.into())));
        }
        for text in ["http://[::1]", "http://[::1]:65535/v1"] {
            check(Kind::Url, text, Some(Value::Text(text.into())));
        }
        for text in ["https://a", "collector:4318", "http://", "/v1/traces"] {
            check(Kind::Url, text, None);
        }
        for text in [
            "http://a:99999",
            "http://a:",
            "http://a:/v1",
            "http://a:0",
            "http://a:+1",
            "http://[::1]:99999",
            "http://a:4318?query",
            "http://a:4318/v1?query=1",
            "http://a:4318/#fragment",
            "http://user:password@a:4318",
            "http://user@a",
        ] {
            check(Kind::Url, text, None);
        }
        for text in ["", "/vision", "/teams/eye-2/v1.0"] {
            check(Kind::BasePath, text, Some(Value::Text(text.into())));
        }
        for text in ["vision", "/", "/vision/", "//vision", "/a/../b", "/a b", "/a%20b", "/a?b", "http://a/b"]
        {
            check(Kind::BasePath, text, None);
        }
        for text in ["triton", "eye-2/v1", &"n".repeat(64)] {
            check(Kind::Name, text, Some(Value::Text(text.into())));
        }
        for text in ["", "two words", "ä", "a\n", &"n".repeat(65)] {
            check(Kind::Name, text, None);
        }
        for text in ["", "digits", "7-segment_v1.0", &"n".repeat(64)] {
            check(Kind::ModelName, text, Some(Value::Text(text.into())));
        }
        for text in ["a/b", "two words", ".hidden", "-a", "ä", &"n".repeat(65)] {
            check(Kind::ModelName, text, None);
        }
        check(Kind::Ratio, "0.25", Some(Value::Real(0.25)));
        check(Kind::Ratio, "1", Some(Value::Real(1.0)));
        for text in ["", "-0.1", "1.1", "NaN", "half"] {
            check(Kind::Ratio, text, None);
        }
    }

    #[test]
    fn no_threads_means_one_per_core() {
        let kind = Kind::Threads { max: 64 };
        check(kind, "0", Some(Value::Number(6)));
        check(kind, "3", Some(Value::Number(3)));
        check(kind, "65", None);
    }

    #[test]
    fn an_empty_address_means_none_and_others_are_numbers() {
        check(Kind::Address, "", Some(Value::Address(None)));
        for text in ["localhost:80", ":8000", "127.0.0.1", "1.2.3.4:70000", "::1:80"] {
            check(Kind::Address, text, None);
        }
    }

    #[test]
    fn a_level_with_a_typing_mistake_is_refused_but_a_target_is_not() {
        for text in [
            "info",
            "warn,ocelli=debug",
            "ocelli::batch=trace",
            "off",
            "INFO",
            "hyper",
            "ocelli[request{id=7}]=debug",
        ] {
            check(Kind::Filter, text, Some(Value::Text(text.into())));
        }
        for text in ["", "inof", "warning", "ocelli=loud", "debgu,hyper=warn"] {
            check(Kind::Filter, text, None);
        }
    }

    #[test]
    fn a_filter_that_would_show_nothing_by_mistake_is_refused_and_blanks_between_its_parts_are_not() {
        for text in [
            "info ocelli=debug",
            "info;ocelli=debug",
            ",",
            " , ",
            "info|debug",
            "ocelli:http=debug",
            "ocelli =debug",
            "info,ocelli::",
        ] {
            check(Kind::Filter, text, None);
        }
        for (text, meant) in
            [(" info , ocelli::http=debug,", "info,ocelli::http=debug"), ("[request]=info", "[request]=info")]
        {
            check(Kind::Filter, text, Some(Value::Text(meant.into())));
        }
    }
}
