//! Checks that `docs/cli.md` matches the command line: every listed command has a section with the table of its arguments.

use super::command;
use crate::{blessed, config::OPTIONS};
use clap::{Arg, Command};
use std::{fmt::Write, fs};

/// A command's own arguments; the options have a page of their own.
fn table(command: &Command) -> String {
    let own = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        id != "config" && !OPTIONS.iter().any(|spec| spec.name == id)
    };
    let mut text = String::from("| argument | | default |\n|---|---|---|\n");
    for arg in command.get_arguments().filter(own) {
        let value = arg.get_value_names().unwrap_or_default().join(" ").replace('|', "\\|");
        let takes = arg.get_action().takes_values();
        let name = match (arg.get_short(), arg.get_long()) {
            (Some(short), Some(long)) => format!("`-{short}`, `--{long} {value}`"),
            (None, Some(long)) if takes => format!("`--{long} {value}`"),
            (None, Some(long)) => format!("`--{long}`"),
            _ => format!("`{value}`"),
        };
        let help = arg.get_help().expect("every argument has help").to_string().replace('|', "\\|");
        let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default =
            if defaults.is_empty() || !takes { String::new() } else { format!("`{}`", defaults.join(" ")) };
        writeln!(text, "| {name} | {help} | {default} |").expect("text takes all");
    }
    text
}

/// The page with up-to-date tables.
fn renewed(page: &str) -> String {
    let command = command();
    let mut out = String::new();
    let mut rest = page;
    // Hidden commands, which only servers start, are left out.
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = sub.get_name();
        let heading = format!("\n## `ocelli {name}`\n");
        let at = rest
            .find(&heading)
            .unwrap_or_else(|| panic!("docs/cli.md has no section {heading:?} in its place"));
        let (before, section) = rest.split_at(at + heading.len());
        out.push_str(before);
        let own = table(sub);
        let next = section.find("\n## ").unwrap_or(section.len());
        let (section, after) = section.split_at(next);
        rest = after;
        if own.lines().count() == 2 {
            out.push_str(section);
            continue;
        }
        let begin = section.find("| argument |").unwrap_or_else(|| panic!("ocelli {name} has no table"));
        let length = section[begin..].find("\n\n").map_or(section.len() - begin, |end| end + 1);
        out.push_str(&section[..begin]);
        out.push_str(&own);
        out.push_str(&section[begin + length..]);
    }
    out + rest
}

#[test]
fn the_reference_of_the_command_line_has_every_command_and_argument() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md")).expect("docs/cli.md");
    blessed::check("docs/cli.md", &renewed(&page), "cli");
}
