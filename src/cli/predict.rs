//! `ocelli predict`: what its flags mean, and the line that says how far it is.

use crate::{
    app::{Predict, Progress},
    tasks::localize::{Counts, Format, Status},
};
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use std::{
    fmt::Write as _,
    io::Write,
    path::PathBuf,
    time::{Duration, Instant},
};

/// The arguments beside the options.
pub(super) fn arguments() -> [Arg; 5] {
    let path = |name: &'static str, value: &'static str| {
        Arg::new(name)
            .value_name(value)
            .value_parser(value_parser!(PathBuf))
            .value_hint(clap::ValueHint::FilePath)
    };
    [
        Arg::new("model").value_name("MODEL").required(true).help("A fitter of the model folder"),
        path("stack", "STACK").required(true).help("Camera frames or ROIs: TIFF, BigTIFF, OME-TIFF or .npy"),
        path("output", "FILE")
            .short('o')
            .long("output")
            .required(true)
            .help("Where to write; its extension says the format (csv, ndjson, hdf5, zip, arrows, npy, png)"),
        Arg::new("format")
            .long("format")
            .value_name("FORMAT")
            .help("The format, where the extension does not say it"),
        Arg::new("set").long("set").value_name("KEY=VALUE").action(ArgAction::Append).help(
            "Changes a setting of the model or of the output, such as psf=xynbs, noise_min=8 or scale=20",
        ),
    ]
}

/// What the arguments ask for.
///
/// # Errors
/// Words for whoever wrote them.
pub(super) fn wanted(matches: &ArgMatches) -> Result<Predict, String> {
    let path = |name| matches.get_one::<PathBuf>(name).cloned().unwrap_or_default();
    let format = match matches.get_one::<String>("format") {
        None => None,
        Some(name) => Some(Format::from_name(name).ok_or_else(|| {
            format!("--format is {name:?}, expected {}", Format::ALL.map(Format::name).join(", "))
        })?),
    };
    let set = matches.get_many::<String>("set").into_iter().flatten().map(|pair| {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| format!("--set is {pair:?}, expected KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    });
    Ok(Predict {
        model: matches.get_one::<String>("model").cloned().unwrap_or_default(),
        stack: path("stack"),
        output: path("output"),
        format,
        set: set.collect::<Result<_, String>>()?,
    })
}

/// How often the line is written anew.
const PERIOD: Duration = Duration::from_millis(100);
/// Characters of the bar.
const BAR: usize = 30;

/// A line on a terminal that is written over.
pub(super) struct Line<'a> {
    out: Option<&'a mut dyn Write>,
    last: Option<Instant>,
}

impl<'a> Line<'a> {
    /// On `out`; nowhere where that is no terminal.
    pub(super) fn new(out: Option<&'a mut dyn Write>) -> Line<'a> {
        Line { out, last: None }
    }

    /// Shows how far it is, unless it just did.
    pub(super) fn show(&mut self, progress: Progress) {
        let Some(out) = &mut self.out else { return };
        let done = progress.bytes >= progress.bytes_in_all;
        if !done && self.last.is_some_and(|last| last.elapsed() < PERIOD) {
            return;
        }
        self.last = Some(Instant::now());
        let _ = write!(out, "\r{}", bar(progress)).and_then(|()| out.flush());
    }

    /// Leaves the line.
    pub(super) fn end(self) {
        if let (Some(out), Some(_)) = (self.out, self.last) {
            let _ = writeln!(out);
        }
    }
}

fn bar(progress: Progress) -> String {
    let Progress { bytes, bytes_in_all, frames, spots } = progress;
    let share = if bytes_in_all == 0 { 1.0 } else { (bytes as f64 / bytes_in_all as f64).min(1.0) };
    let full = (share * BAR as f64) as usize;
    format!(
        "[{}{}] {:>3.0} %  {frames} frames  {spots} spots",
        "#".repeat(full),
        ".".repeat(BAR - full),
        share * 100.0
    )
}

/// What came of it, in a line.
pub(super) fn summary(counts: &Counts, wanted: &Predict, took: Duration) -> String {
    let mut text = format!(
        "{} spots in {} frames, {} written to {}, in {:.2} s",
        counts.rows,
        counts.frames,
        counts.written,
        wanted.output.display(),
        took.as_secs_f64()
    );
    for (status, count) in Status::ALL.iter().zip(counts.status) {
        if count > 0 {
            let _ = write!(text, "; {} {count}", status.name());
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_as_full_as_the_file_was_read() {
        let progress = Progress { bytes: 50, bytes_in_all: 100, frames: 7, spots: 21 };
        let half = "#".repeat(15) + &".".repeat(15);
        assert_eq!(bar(progress), format!("[{half}]  50 %  7 frames  21 spots"));
        assert!(bar(Progress::default()).contains("100 %"));
    }
}
