//! `ocelli predict`: runs files through a model, on a server or in this process. Both give the same answers, because
//! both use the server's routes.
//!
//! - `arguments`: the flags; `files`: finds the input files.
//! - `ask`: sends a file as a request; `rows`: formats replies as text.
//! - `pictures`: answers that are pictures; `destinations`: the file of each such answer.
//! - `stacks`: sends stacks while they are read; `localize`: where their localizations go.

mod arguments;
mod ask;
mod destinations;
mod files;
mod localize;
mod pictures;
mod rows;
mod stacks;

pub(super) use arguments::arguments;

use super::{
    Exit, Streams,
    client::{Described, Server, Unknown, runtime, runtime_here, until_signal},
    options,
    output::Output,
    target::Target,
};
use crate::{app::Local, config::Config};
use arguments::Wanted;
use ask::{Asking, Reply};
use clap::ArgMatches;
use files::Takes;
use futures_util::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use pictures::Picture;
use rows::{Form, Sheet};
use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
};

impl Streams<'_> {
    /// Runs `ocelli predict`.
    pub(super) fn predict(&mut self, matches: &ArgMatches) -> Exit {
        let wanted = match arguments::wanted(matches) {
            Ok(wanted) => wanted,
            Err(reason) => return self.complain(&reason, Exit::Usage),
        };
        let Some(url) = matches.get_one::<String>("url") else {
            return self.with_config(matches, |streams, loaded| streams.predict_here(&loaded.config, wanted));
        };
        if let Some(told) = options::beside_url(matches) {
            return self.complain(&told, Exit::Usage);
        }
        match Target::parse(url) {
            Ok(target) => {
                match runtime() {
                    Ok(runtime) => {
                        let exit = until_signal(&runtime, self.predict_on(Server::there(&target), wanted));
                        // Does not wait for a pipe that is still being read.
                        runtime.shutdown_background();
                        exit
                    }
                    Err(error) => self.complain(&error, Exit::from(&error)),
                }
            }
            Err(reason) => self.complain(&reason, Exit::Usage),
        }
    }

    fn predict_here(&mut self, config: &Config, wanted: Wanted) -> Exit {
        let runtime = match runtime_here(config) {
            Ok(runtime) => runtime,
            Err(error) => return self.complain(&error, Exit::from(&error)),
        };
        let model = (&*wanted.model.name, wanted.model.version.as_deref());
        let local = {
            let _inside = runtime.enter();
            match Local::start(config, model, &|_| {}) {
                Ok(local) => local,
                Err(error) => return self.complain(&error, Exit::from(&error)),
            }
        };
        let exit = until_signal(&runtime, self.predict_on(Server::here(&local), wanted));
        local.end();
        runtime.shutdown_background();
        exit
    }

    async fn predict_on(&mut self, server: Server, wanted: Wanted) -> Exit {
        let described = match self.described(&server, &wanted).await {
            Ok(described) => described,
            Err(error @ Unknown::Unreachable(_)) => return self.complain(&error, Exit::Unavailable),
            Err(error @ Unknown::Refused { .. }) => return self.complain(&error, Exit::Failure),
        };
        let takes = match (described.images, &*described.task) {
            (_, "localize") => Takes::Stacks,
            (true, _) => Takes::Images,
            (false, _) => Takes::Tensors,
        };
        let found = match files::find(&wanted.files, takes) {
            Ok(found) => found,
            Err(reason) => return self.complain(&reason, Exit::NoInput),
        };
        if let Some(output) = wanted.output.as_ref().filter(|output| files::same(&found, output)) {
            let told = format!("-o {} is one of the files that are asked about", output.display());
            return self.complain(&told, Exit::Usage);
        }
        let Wanted { model, patience, time_max, set, .. } = &wanted;
        let (set, patience, time_max) = (set.clone(), *patience, *time_max);
        let asking = Asking { server, model: model.clone(), described, patience, time_max, set };
        if takes == Takes::Stacks {
            return self.localize(&asking, &found, &wanted).await;
        }
        if !wanted.raw.is_empty() {
            let told = format!("--raw is for stacks, and model {:?} takes none", asking.model.name);
            return self.complain(&told, Exit::Usage);
        }
        let (format, output) = (wanted.format.as_deref(), wanted.output.as_deref());
        match Picture::of(&asking.described.task, format, output) {
            Ok(None) => {}
            Ok(Some(picture)) => return self.pictures(&asking, found, picture, &wanted).await,
            Err(reason) => return self.complain(&reason, Exit::Usage),
        }
        match Form::of(&asking.described.task, format, output) {
            Ok(form) => self.answers(&asking, found, form, &wanted).await,
            Err(reason) => self.complain(&reason, Exit::Usage),
        }
    }

    /// The server's description of the model, with the same retries as for files: a replica may be about to start.
    async fn described(&mut self, server: &Server, wanted: &Wanted) -> Result<Described, Unknown> {
        let Wanted { patience, time_max, .. } = wanted;
        let mut tried = 0;
        loop {
            let asked = tokio::time::timeout(*time_max, server.model(&wanted.model)).await;
            let late = |_| {
                let told = format!("{}no reply within {} ms", server.says(), time_max.as_millis());
                Err(Unknown::Unreachable(told))
            };
            let error = match asked.unwrap_or_else(late) {
                Ok(described) => return Ok(described),
                Err(error) => error,
            };
            let (status, after) = error.told();
            let Some(wait) = patience.wait(tried, status, after) else {
                return Err(error.because(|why| patience.given_up(&why, after)));
            };
            if tried == 0 {
                let _ = writeln!(self.err, "ocelli: {error}; asking again, up to {} times", patience.retries);
            }
            tokio::time::sleep(wait).await;
            tried += 1;
        }
    }

    /// Writes the answers for all files, in the order of the files.
    async fn answers(&mut self, asking: &Asking, found: Vec<PathBuf>, form: Form, wanted: &Wanted) -> Exit {
        let mut file = match wanted.output.as_deref().map(Output::create).transpose() {
            Ok(file) => file,
            Err(error) => return self.complain(&cannot_write(wanted, &error), Exit::Failure),
        };
        let bar = bar(found.len() as u64, FILES_BAR);
        let mut sheet = Sheet::new(form, &asking.described.task).in_any_form(asking.sets_format());
        let asked = stream::iter(found).map(|path| async move {
            let reply = asking.file(&path, None).await;
            (path, reply)
        });
        let mut asked = std::pin::pin!(asked.buffered(wanted.concurrency));
        let mut failed = 0;
        while let Some((path, reply)) = asked.next().await {
            let name = path.display().to_string();
            let (text, mistakes) = match reply {
                Ok(Reply { ok: true, body }) => sheet.add(&name, &body),
                Ok(Reply { ok: false, body }) => {
                    let why = Reply::refusal(&body);
                    (sheet.fail(&name, None, &why, Some(&body)), vec![why])
                }
                Err(why) => (sheet.fail(&name, None, &why, None), vec![why]),
            };
            failed += usize::from(!mistakes.is_empty());
            bar.suspend(|| mistakes.iter().for_each(|why| drop(writeln!(self.err, "ocelli: {name}: {why}"))));
            if failed > 0 {
                bar.set_message(format!("{failed} failed"));
            }
            bar.inc(1);
            if let Err(exit) = bar.suspend(|| self.write(&mut file, &text, wanted)) {
                return exit;
            }
        }
        bar.finish_and_clear();
        if let Err(exit) = self.write(&mut file, &sheet.end(), wanted) {
            return exit;
        }
        match file.map_or(Ok(()), Output::finish) {
            Err(error) => self.complain(&cannot_write(wanted, &error), Exit::Failure),
            Ok(()) if failed > 0 => Exit::Failure,
            Ok(()) => Exit::Ok,
        }
    }

    /// Writes to the chosen file or to standard output. The error is the exit code if no more can be written.
    fn write(&mut self, file: &mut Option<Output>, text: &str, wanted: &Wanted) -> Result<(), Exit> {
        let written = match file {
            Some(file) => file.write_all(text.as_bytes()),
            None => self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()),
        };
        match written {
            Ok(()) => Ok(()),
            // A reader that has closed the pipe (`| head`) is no failure.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Exit::Ok),
            Err(error) => Err(self.complain(&cannot_write(wanted, &error), Exit::Failure)),
        }
    }
}

fn cannot_write(wanted: &Wanted, error: &io::Error) -> String {
    let place =
        wanted.output.as_ref().map_or("the standard output".into(), |path| path.display().to_string());
    format!("cannot write to {place}: {error}")
}

/// Progress in files and in bytes.
const FILES_BAR: &str = "{wide_bar} {pos}/{len} files {msg} {eta}";
const BYTES_BAR: &str = "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
/// Progress if the total is unknown.
const PIPE_BAR: &str = "{bytes} {bytes_per_sec}";

/// A progress bar on a terminal; hidden elsewhere.
fn bar(length: u64, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("a test reads the templates");
    ProgressBar::new(length).with_style(style).with_finish(ProgressFinish::AndClear)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bars_can_be_drawn() {
        for template in [FILES_BAR, BYTES_BAR, PIPE_BAR] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
