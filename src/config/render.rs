//! Renders the table of options as `deploy/ocelli.toml` and as `docs/options.md`. Tests check that both files equal
//! this output; `OCELLI_BLESS=1 cargo test --lib config` rewrites them.

use super::table::{OPTIONS, Spec};
use std::fmt::Write;

/// Columns of comments in the file.
const WIDTH: usize = 100;

/// A configuration file with every option at its default, each with its description.
pub fn toml_defaults() -> String {
    let mut out = String::from(
        "# Every option of ocelli at its default. Flags win over OCELLI_* variables, those over this file.\n\
         # `ocelli config` prints what is in effect and where each value comes from.\n",
    );
    for (section, options) in sections() {
        let _ = write!(out, "\n## {section}\n");
        for spec in options {
            let _ = writeln!(out);
            for line in wrap(&format!("{} {}", spec.doc, spec.more), WIDTH - 2) {
                let _ = writeln!(out, "# {line}");
            }
            for line in wrap(&sentence(&spec.kind.allowed()), WIDTH - 2) {
                let _ = writeln!(out, "# {line}");
            }
            let quote = if spec.kind.is_number() { "" } else { "\"" };
            let _ = writeln!(out, "{} = {quote}{}{quote}", spec.name, spec.default);
        }
    }
    out
}

/// The reference of options.
pub fn options_md() -> String {
    let mut out = String::from(
        "# Options\n\n\
         <!-- Made from src/config/table.rs by `OCELLI_BLESS=1 cargo test --lib config`. -->\n\n\
         Each option can be set in a TOML file (`--config FILE` or `OCELLI_CONFIG`), by a variable, or by a flag.\n\
         Flags win over variables, variables over the file, the file over the defaults. All mistakes are reported\n\
         together, and unknown names are mistakes. `ocelli config` prints what is in effect and where it comes from;\n\
         [`deploy/ocelli.toml`](../deploy/ocelli.toml) is a file with every default.\n\n\
         An empty variable is an empty value, not an unset one; but an empty `OCELLI_CONFIG` names no file. Sizes take a unit: `KiB`, `MiB`, `GiB`, `TiB`\n\
         (powers of 1024) or `kB`, `MB`, `GB`, `TB` (powers of 1000).\n",
    );
    for (section, options) in sections() {
        let _ = write!(out, "\n## {section}\n");
        for spec in options {
            let default = match spec.default {
                "" => "empty".into(),
                default => format!("`{default}`"),
            };
            let _ = write!(
                out,
                "\n### `{}`\n\n{} {}\n\n- flag `--{}`, variable `{}`\n- {}\n- default: {default}\n",
                spec.name,
                spec.doc,
                spec.more,
                spec.flag(),
                spec.variable(),
                spec.kind.allowed(),
            );
        }
    }
    out
}

/// The table by its headings, in order.
fn sections() -> impl Iterator<Item = (&'static str, &'static [Spec])> {
    OPTIONS.chunk_by(|a, b| a.section == b.section).map(|options| (options[0].section, options))
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.into());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
