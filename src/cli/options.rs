//! The table of options as flags. Their values are checked by the configuration, so that mistakes in flags are reported
//! together with those of the file and the environment.

use crate::config::{Kind, OPTIONS, Sources, Spec};
use clap::{
    Arg, ArgMatches, Command,
    builder::{PossibleValue, TypedValueParser},
    value_parser,
};
use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
};

/// The precedence of sources.
pub(super) const PRECEDENCE: &str = "Flags win over OCELLI_* variables, variables over the file, the file over the \
    defaults. `ocelli config` prints what is in effect. Sizes take units, such as 256MiB.";

/// Points to the options that a command accepts but does not list.
pub(super) const ELSEWHERE: &str =
    "This command also takes every option of `ocelli serve`: `ocelli serve --help` lists them.";

/// The options most wanted for commands that load models without serving them.
const COMMON: [&str; 4] = ["config", "models", "backend", "onnx_runtime"];

/// Hides an argument from a command's help unless it is often wanted there.
pub(super) fn hidden_unless_common(argument: Arg) -> Arg {
    let common = COMMON.contains(&argument.get_id().as_str());
    argument.hide(!common)
}

/// `--config` and a flag for each option.
pub(super) fn arguments() -> Vec<Arg> {
    let file = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .value_hint(clap::ValueHint::FilePath)
        .help("A TOML file with options [variable: OCELLI_CONFIG]");
    [file].into_iter().chain(OPTIONS.iter().map(flag)).collect()
}

fn flag(spec: &'static Spec) -> Arg {
    let default = match spec.default {
        "" => "empty",
        default => default,
    };
    let flag = Arg::new(spec.name)
        .long(spec.flag())
        .value_name(spec.kind.placeholder())
        // A negative number is a mistake in a value, not an unknown flag.
        .allow_negative_numbers(true)
        .help_heading(spec.section)
        .help(format!("{} [default: {default}]", spec.doc))
        .long_help(format!(
            "{} {}\n\nTakes {}.\n[default: {default}] [variable: {}]",
            spec.doc,
            spec.more,
            spec.kind.allowed(),
            spec.variable()
        ));
    match spec.kind {
        Kind::Choice(words) => flag.value_parser(Words(words)).hide_possible_values(true),
        Kind::Path { .. } => flag.value_parser(value_parser!(OsString)).value_hint(clap::ValueHint::AnyPath),
        _ => flag.value_parser(value_parser!(OsString)),
    }
}

/// Offers these words for completion but accepts any: the configuration checks the value with everything else.
#[derive(Clone)]
struct Words(&'static [&'static str]);

impl TypedValueParser for Words {
    type Value = OsString;

    fn parse_ref(&self, _: &Command, _: Option<&Arg>, value: &OsStr) -> Result<OsString, clap::Error> {
        Ok(value.into())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

/// The process's sources, with the given flags.
pub(super) fn sources(matches: &ArgMatches) -> Sources {
    let flags =
        OPTIONS.iter().filter_map(|spec| Some((spec.name, matches.get_one::<OsString>(spec.name)?.clone())));
    Sources::of_process(matches.get_one("config").cloned(), flags.collect())
}

/// The mistake in a command that asks a running server but also sets an option of the server's.
pub(super) fn beside_url(matches: &ArgMatches) -> Option<String> {
    let sources = sources(matches);
    let (option, _) = sources.flags.first()?;
    Some(format!("with --url the server has its own options: leave out --{}", option.replace('_', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[&str]) -> Sources {
        let command = Command::new("test").args(arguments());
        let given = ["test"].iter().chain(given);
        sources(&command.try_get_matches_from(given).expect("flags"))
    }

    #[test]
    fn every_option_has_a_flag_that_hands_its_value_on_unread() {
        for spec in OPTIONS {
            let sources = parse(&[&format!("--{}", spec.flag()), "any thing"]);
            assert_eq!(sources.flags, [(spec.name, "any thing".into())]);
        }
    }

    #[test]
    fn an_empty_value_is_a_value() {
        let sources = parse(&["--admin-listen=", "--parts-max", "-1"]);
        assert_eq!(sources.flags, [("admin_listen", "".into()), ("parts_max", "-1".into())]);
    }

    #[test]
    fn the_file_is_named_apart_from_the_options() {
        let sources = parse(&["--config", "a.toml"]);
        assert_eq!(sources.file, Some("a.toml".into()));
        assert!(sources.flags.is_empty());
    }

    #[test]
    fn help_says_default_variable_and_range_of_every_option() {
        let mut command = Command::new("test").args(arguments());
        let help = command.render_long_help().to_string();
        for spec in OPTIONS {
            for part in [spec.doc, &spec.variable(), spec.section] {
                assert!(help.contains(part), "{part:?} of {} is missing", spec.name);
            }
        }
    }
}
