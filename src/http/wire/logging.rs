//! Triton's settings of the log, and how they follow from the filter and change it.
//!
//! Triton switches each level on and off. Here a level comes with all that are graver, and `log_filter` says more: levels by target.

use super::optional_object;
use crate::{
    error::{InferError, bad},
    telemetry::filter::Now,
    words::clipped,
};
use serde_json::{Map, Value, json};
use tracing::level_filters::LevelFilter;

/// Times in the log are by ISO 8601, whatever the settings.
const FORMAT: &str = "ISO8601";

/// What Triton's own setting is until it is changed. It is taken for the format that there is, so that its settings may be sent here.
const TRITONS_FORMAT: &str = "default";

/// The names of the settings.
const NAMES: [&str; 7] =
    ["log_filter", "log_error", "log_warning", "log_info", "log_verbose_level", "log_file", "log_format"];

/// The settings of a body that are given.
#[derive(Default)]
struct Asked {
    log_filter: Option<String>,
    log_error: Option<bool>,
    log_warning: Option<bool>,
    log_info: Option<bool>,
    log_verbose_level: Option<u32>,
}

impl Asked {
    fn of(body: &[u8]) -> Result<Asked, InferError> {
        let mut asked = Asked::default();
        for (name, value) in optional_object::<Map<String, Value>>(body)? {
            let refused = |expected: &str| {
                bad(format!("{:?} is {}, expected {expected}", clipped(&name), clipped(&value.to_string())))
            };
            let flag = || value.as_bool().map(Some).ok_or_else(|| refused("true or false"));
            match &*name {
                "log_filter" => {
                    asked.log_filter = Some(value.as_str().ok_or_else(|| refused("a string"))?.to_owned());
                }
                "log_error" => asked.log_error = flag()?,
                "log_warning" => asked.log_warning = flag()?,
                "log_info" => asked.log_info = flag()?,
                "log_verbose_level" => {
                    let level = value.as_u64().and_then(|level| u32::try_from(level).ok());
                    asked.log_verbose_level = Some(level.ok_or_else(|| refused("0 to 4294967295"))?);
                }
                "log_file" if value != "" => {
                    return Err(refused(
                        "\"\": lines go to standard error, and to the folder that the option log_dir names",
                    ));
                }
                "log_format" if value != FORMAT && value != TRITONS_FORMAT => {
                    return Err(refused("\"ISO8601\", which times always have"));
                }
                "log_file" | "log_format" => {}
                _ => {
                    let known = NAMES.join(", ");
                    return Err(bad(format!(
                        "there is no setting {:?}; the settings are {known}",
                        clipped(&name)
                    )));
                }
            }
        }
        Ok(asked)
    }
}

/// The settings, by name, which follow from this filter.
pub(crate) fn settings(now: &Now) -> Map<String, Value> {
    let Now { text, level } = now;
    let settings = [
        ("log_file", json!("")),
        ("log_info", json!(*level >= LevelFilter::INFO)),
        ("log_warning", json!(*level >= LevelFilter::WARN)),
        ("log_error", json!(*level >= LevelFilter::ERROR)),
        ("log_verbose_level", json!(verbosity(*level))),
        ("log_format", json!(FORMAT)),
        ("log_filter", json!(text)),
    ];
    settings.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

/// The filter that a body asks for, where this one is in force; `None` if it asks for no change. What is as it was asks for none, so a
/// caller may send all settings back with one of them changed.
///
/// # Errors
/// 400 for what is no setting or cannot be had.
pub(crate) fn filter(body: &[u8], now: &Now) -> Result<Option<String>, InferError> {
    let Asked { log_filter, log_error, log_warning, log_info, log_verbose_level } = Asked::of(body)?;
    let before =
        [now.level >= LevelFilter::ERROR, now.level >= LevelFilter::WARN, now.level >= LevelFilter::INFO];
    let after = [log_error, log_warning, log_info];
    let after: [bool; 3] = std::array::from_fn(|at| after[at].unwrap_or(before[at]));
    let verbose = log_verbose_level.unwrap_or(verbosity(now.level));
    let levels = after != before || verbose != verbosity(now.level);
    if let Some(filter) = log_filter.filter(|filter| *filter != now.text) {
        return match levels {
            true => Err(bad("log_filter says which levels there are: change it or the levels, not both")),
            false => Ok(Some(filter)),
        };
    }
    if !levels {
        return Ok(None);
    }
    // The gravest first.
    let [error, warning, info] = after;
    let switches = [
        ("log_error", error),
        ("log_warning", warning),
        ("log_info", info),
        ("log_verbose_level", verbose > 0),
    ];
    let on = switches.iter().take_while(|(_, on)| *on).count();
    if let Some((finer, _)) = switches[on..].iter().find(|(_, on)| *on) {
        return Err(bad(format!(
            "{} is off and {finer} is not; lines of a level come with all that are graver: switch both off, or both on",
            switches[on].0
        )));
    }
    Ok(Some(
        match (on, verbose) {
            (0, _) => "off",
            (1, _) => "error",
            (2, _) => "warn",
            (3, _) => "info",
            (_, 1) => "info,ocelli=debug",
            (_, _) => "info,ocelli=trace",
        }
        .to_owned(),
    ))
}

/// Triton's number for what is finer than information.
fn verbosity(level: LevelFilter) -> u32 {
    match level {
        LevelFilter::TRACE => 2,
        LevelFilter::DEBUG => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(text: &str, level: LevelFilter) -> Now {
        Now { text: text.to_owned(), level }
    }

    #[test]
    fn levels_become_the_filter_that_shows_them_and_back() {
        let info = now("warn,ocelli=info", LevelFilter::INFO);
        for (body, expected, level) in [
            (json!({"log_verbose_level": 1}), "info,ocelli=debug", LevelFilter::DEBUG),
            (json!({"log_verbose_level": 7}), "info,ocelli=trace", LevelFilter::TRACE),
            (json!({"log_info": false}), "warn", LevelFilter::WARN),
            (json!({"log_info": false, "log_warning": false}), "error", LevelFilter::ERROR),
            (json!({"log_info": false, "log_warning": false, "log_error": false}), "off", LevelFilter::OFF),
            (json!({"log_filter": "warn,ocelli=info", "log_info": false}), "warn", LevelFilter::WARN),
        ] {
            let filter = filter(body.to_string().as_bytes(), &info).expect("settings").expect("a change");
            assert_eq!(filter, expected, "{body}");
            let told = settings(&now(&filter, level));
            for (name, value) in
                body.as_object().expect("an object").iter().filter(|(name, _)| *name != "log_filter")
            {
                let told = &told[name];
                assert!(told == value || (*value == json!(7) && *told == json!(2)), "{name}: {told}");
            }
        }
    }

    #[test]
    fn a_filter_is_taken_as_it_is_and_what_is_said_already_changes_nothing() {
        let info = now("info", LevelFilter::INFO);
        let body = br#"{"log_filter": "warn,ocelli::models=debug"}"#;
        assert_eq!(filter(body, &info), Ok(Some("warn,ocelli::models=debug".into())));
        let all = Value::Object(settings(&info)).to_string();
        for body in ["", "{}", r#"{"log_info": true, "log_verbose_level": 0}"#, &all] {
            assert_eq!(filter(body.as_bytes(), &info), Ok(None), "{body}");
        }
        let mut all = settings(&info);
        all["log_verbose_level"] = json!(1);
        let all = Value::Object(all).to_string();
        assert_eq!(
            filter(all.as_bytes(), &info),
            Ok(Some("info,ocelli=debug".into())),
            "all but one are as they were"
        );
    }

    #[test]
    fn what_triton_says_of_itself_changes_nothing() {
        let tritons = br#"{"log_file": "", "log_info": true, "log_warning": true, "log_error": true, "log_verbose_level": 0,
            "log_format": "default"}"#;
        assert_eq!(filter(tritons, &now("info", LevelFilter::INFO)), Ok(None));
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_what_to_do() {
        let debug = now("debug", LevelFilter::DEBUG);
        for (body, part) in [
            (r#"{"log_info": false}"#, "log_info is off and log_verbose_level is not"),
            (r#"{"log_warning": false, "log_verbose_level": 0}"#, "log_warning is off and log_info is not"),
            (r#"{"log_file": "/tmp/x"}"#, "log_dir"),
            (r#"{"log_format": "local"}"#, "ISO8601"),
            (r#"{"log_filter": "info", "log_verbose_level": 0}"#, "not both"),
            (r#"{"log_level": 1}"#, "no setting \"log_level\"; the settings are log_filter, log_error"),
            (r#"{"log_info": 1}"#, "\"log_info\" is 1, expected true or false"),
            (r#"{"log_verbose_level": -1}"#, "\"log_verbose_level\" is -1, expected 0 to 4294967295"),
            ("[]", "object"),
        ] {
            let error = filter(body.as_bytes(), &debug).expect_err(body).to_string();
            assert!(error.contains(part), "{body}: {error}");
        }
    }
}
