//! The flags of `ocelli predict`, and what they ask for.

use super::{
    super::client::{Name, Patience},
    files,
};
use crate::tasks::localize::Format;
use clap::{Arg, ArgAction, ArgMatches, builder::PossibleValuesParser, value_parser};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// The arguments beside the options.
pub(in crate::cli) fn arguments() -> Vec<Arg> {
    let number = |name: &'static str, value: &'static str, default: &'static str| {
        Arg::new(name).long(name).value_name(value).default_value(default)
    };
    vec![
        Arg::new("model").value_name("MODEL").required(true).help("NAME or NAME/VERSION, a model of the folder or of the server"),
        Arg::new("files")
            .value_name("FILES")
            .required(true)
            .num_args(1..)
            .value_parser(value_parser!(PathBuf))
            .value_hint(clap::ValueHint::AnyPath)
            .help("Pictures, stacks, arrays (.npy) or requests (.json); also folders, quoted patterns, and - for the standard input"),
        Arg::new("url")
            .long("url")
            .value_name("http://HOST[:PORT]")
            .help("The server to ask; without it, the model is loaded here"),
        Arg::new("format")
            .long("format")
            .value_name("FORMAT")
            .value_parser(PossibleValuesParser::new(formats()))
            .hide_possible_values(true)
            .help("table, json or csv; default: what -o ends in, or table. For masks and pictures also png and tiff; for localizations ndjson, thunderstorm, hdf5, picasso, arrow, npy and png"),
        Arg::new("output")
            .short('o')
            .long("output")
            .value_name("PATH")
            .value_parser(value_parser!(PathBuf))
            .value_hint(clap::ValueHint::AnyPath)
            .help("Where to write; default: the standard output (-). For several stacks or pictures, a folder, which is created"),
        Arg::new("set").long("set").value_name("KEY=VALUE").action(ArgAction::Append).help(
            "A key of the request's query, such as top_k=3, mask=rle, psf=xynbs, noise_min=8 or scale=20; may be repeated",
        ),
        Arg::new("raw").long("raw").value_name("WxH[xN][:TYPE]").help(
            "Stacks are raw little-endian samples of this width, height and number of frames: u16 (the default), f32 or u8",
        ),
        number("concurrency", "N", "4").value_parser(value_parser!(u16).range(1..=1024)).help("Requests at once"),
        number("retries", "N", "5")
            .value_parser(value_parser!(u32).range(0..=1000))
            .help("How often to ask again if the server is full, is starting, or cannot be reached"),
        number("wait-ms-max", "MS", "30000")
            .value_parser(value_parser!(u64).range(0..=3_600_000))
            .help("The longest wait before asking again; if the server asks for a longer one (Retry-After), there is no retry"),
        number("timeout-ms-per-file", "MS", "120000")
            .value_parser(value_parser!(u64).range(1..=86_400_000))
            .help("How long the answer for a file may take; stacks have no limit"),
    ]
}

/// All forms in which answers can be written. Which of them apply depends on the kind of model.
fn formats() -> impl Iterator<Item = &'static str> {
    ["table", "json", "tiff"].into_iter().chain(Format::ALL.map(Format::name))
}

/// The parsed arguments.
pub(in crate::cli) struct Wanted {
    pub(super) model: Name,
    pub(super) files: Vec<PathBuf>,
    pub(super) format: Option<String>,
    pub(super) output: Option<PathBuf>,
    pub(super) set: Vec<(String, String)>,
    /// `dtype` and `shape` for the query.
    pub(super) raw: Vec<(String, String)>,
    pub(super) concurrency: usize,
    pub(super) patience: Patience,
    pub(super) time_max: Duration,
}

/// Interprets the arguments.
///
/// # Errors
/// A message for the user.
pub(super) fn wanted(matches: &ArgMatches) -> Result<Wanted, String> {
    let text = |name| matches.get_one::<String>(name).cloned();
    let ms = |name| Duration::from_millis(*matches.get_one::<u64>(name).expect("clap has a default"));
    let set = matches.get_many::<String>("set").into_iter().flatten().map(|pair| {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| format!("--set is {pair:?}, expected KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    });
    let files: Vec<PathBuf> = matches.get_many::<PathBuf>("files").into_iter().flatten().cloned().collect();
    if let Some(name) = files::repeated(&files) {
        return Err(format!("{} is named twice, and can be read once: name it once", name.display()));
    }
    Ok(Wanted {
        model: Name::parse(&text("model").expect("clap requires the model")),
        files,
        format: text("format"),
        output: matches.get_one::<PathBuf>("output").filter(|path| path.as_os_str() != "-").cloned(),
        set: set.collect::<Result<_, String>>()?,
        raw: text("raw").map_or(Ok(Vec::new()), |text| raw(&text))?,
        concurrency: usize::from(*matches.get_one::<u16>("concurrency").expect("clap has a default")),
        patience: Patience {
            retries: *matches.get_one::<u32>("retries").expect("clap has a default"),
            wait_max: ms("wait-ms-max"),
        },
        time_max: ms("timeout-ms-per-file"),
    })
}

/// The one of `known` that a file's extension names.
///
/// # Errors
/// A message that lists the known extensions and `others`, which the caller has already tried.
pub(super) fn by_extension<T: Copy>(path: &Path, known: &[(&str, T)], others: &[&str]) -> Result<T, String> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let found = known.iter().find(|(name, _)| extension.as_deref() == Some(*name));
    found.map(|(_, form)| *form).ok_or_else(|| {
        let known: Vec<&str> = known.iter().map(|(name, _)| *name).chain(others.iter().copied()).collect();
        format!(
            "{} does not say by its extension what to write; known are {}; or give --format",
            path.display(),
            known.join(", ")
        )
    })
}

/// `WxH[xN][:TYPE]` as the query's `dtype` and `shape`; the shape has the width last.
fn raw(text: &str) -> Result<Vec<(String, String)>, String> {
    let refused = || {
        format!(
            "--raw is {text:?}, expected WIDTHxHEIGHT or WIDTHxHEIGHTxFRAMES, and :u16, :f32 or :u8 behind it"
        )
    };
    let (sides, dtype) = text.split_once(':').unwrap_or((text, "u16"));
    let sides: Vec<u64> =
        sides.split('x').map(str::parse).collect::<Result<_, _>>().map_err(|_| refused())?;
    if !(2..=3).contains(&sides.len()) || sides.contains(&0) || !["u16", "f32", "u8"].contains(&dtype) {
        return Err(refused());
    }
    let shape = sides.iter().rev().map(u64::to_string).collect::<Vec<_>>();
    // Frames first, then rows: from the slowest to the fastest axis.
    Ok(vec![("dtype".into(), dtype.into()), ("shape".into(), shape.join(","))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_samples_are_told_as_the_server_takes_them() {
        let pairs = |dtype: &str, shape: &str| {
            Ok(vec![("dtype".to_owned(), dtype.to_owned()), ("shape".into(), shape.into())])
        };
        assert_eq!(raw("96x40"), pairs("u16", "40,96"));
        assert_eq!(raw("96x40x160:f32"), pairs("f32", "160,40,96"));
        for text in ["", "96", "96x", "0x40", "1x2x3x4", "96x40:u32", "axb"] {
            assert!(raw(text).is_err(), "{text}");
        }
    }
}
