//! Prints the options in effect as a configuration file, each with its origin.

use crate::config::{Kind, Setting};
use std::fmt::Write;

/// A file that sets the options in effect: `name = value  # origin`.
pub(super) fn settings(settings: &[Setting]) -> String {
    let lines: Vec<_> = settings.iter().map(assignment).collect();
    let width = lines.iter().map(|line| line.chars().count()).max();
    let width = width.unwrap_or(0).min(60);
    let mut out = String::new();
    for (line, setting) in lines.iter().zip(settings) {
        // A path may contain a line break, which would end the comment.
        let origin = setting.origin.to_string().replace(char::is_control, "?");
        let _ = writeln!(out, "{line:width$}  # {origin}");
    }
    out
}

fn assignment(setting: &Setting) -> String {
    let text = &setting.text;
    if setting.spec.kind == Kind::Secret {
        // The output may be passed on, so secrets are not shown.
        let state = if text.is_empty() { "is not set" } else { "is set, and not shown" };
        return format!("# {} {state}", setting.spec.name);
    }
    match setting.spec.kind {
        Kind::Count { .. } | Kind::Millis { .. } | Kind::Threads { .. } => {
            // Parsed and written again: the options accept `+5` and `007` as numbers, but TOML does not.
            let number = text.parse::<u64>().map_or(text.clone(), |n| n.to_string());
            format!("{} = {number}", setting.spec.name)
        }
        Kind::Ratio => {
            let number = text.parse::<f64>().map_or(text.clone(), |n| n.to_string());
            format!("{} = {number}", setting.spec.name)
        }
        _ => format!("{} = {}", setting.spec.name, toml::Value::String(text.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};

    #[test]
    fn a_token_is_not_shown() {
        let sources = Sources {
            file: None,
            environment: vec![("OCELLI_ADMIN_TOKEN".into(), "correct-horse-battery".into())],
            flags: Vec::new(),
            cores: 3,
        };
        let printed = settings(&load(&sources).expect("no mistakes").settings);
        assert!(printed.contains("# admin_token is set") && !printed.contains("horse"), "{printed}");
    }

    #[test]
    fn what_is_printed_reads_back_as_the_same_configuration() {
        let mut sources = Sources {
            file: None,
            environment: vec![
                ("OCELLI_MODELS".into(), "a \"b\" \\ c\n#\u{1b}".into()),
                ("OCELLI_PARTS_MAX".into(), "007".into()),
            ],
            flags: vec![("body_bytes_max", "5 MiB".into())],
            cores: 3,
        };
        let loaded = load(&sources).expect("no mistakes");
        let printed = settings(&loaded.settings);
        assert!(
            printed.contains("# --body-bytes-max")
                && printed.contains("# OCELLI_PARTS_MAX")
                && printed.contains("# default"),
            "{printed}"
        );
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &printed).expect("a file");
        sources.environment.clear();
        sources.flags.clear();
        sources.file = Some(file.path().into());
        let again = load(&sources).expect("what is printed is right");
        assert_eq!(again.config, loaded.config);
    }
}
