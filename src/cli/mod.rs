//! The command line: `serve`, `check`, `devices`, `predict`, `bench`, `tune`, `health`, `config`, `completions`.
//!
//! - `options`: the table of options as flags.
//! - `check`: the table of models; `devices`: the table of devices; `held`: memory of models there; `table`: formats tables.
//! - `bench`: the load that a server sustains; `tune`: the batches that suit a model.
//! - `predict`: runs files through a model, on a server or here; `client`: sends requests; `message`: builds them.
//! - `output`: files that are written, which get their names only once they are complete.
//! - `health`: asks for a server's health, for containers without other tools; `target`: which server is asked.
//! - `show`: prints the options in effect.
//! - `worker`: the process that a server starts to run a GPU; not for users.
//! - `reference`: checks that `docs/cli.md` matches all this.

mod bench;
mod check;
mod client;
mod devices;
mod health;
mod held;
mod message;
mod options;
mod output;
mod predict;
#[cfg(test)]
mod reference;
mod show;
mod table;
mod target;
mod tune;
mod worker;

use crate::{
    app::{self, AppError},
    config::{self, Config, Loaded},
    engine::onnx::report_nothing,
    telemetry::{COMMIT, VERSION, logging::colours},
};
use clap::{
    Arg, ArgMatches, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use clap_complete::Shell;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    low_level::emulate_default_handler,
};
use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};

/// Exit codes, by `sysexits.h` where it has a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Exit {
    Ok = 0,
    /// Anything without a code of its own; `health`: not healthy.
    Failure = 1,
    /// Wrong usage of the command line.
    Usage = 64,
    /// An input file does not exist.
    NoInput = 66,
    /// Nothing to run the models on: no backend, or no server at the address.
    Unavailable = 69,
    /// A bug in Ocelli.
    Internal = 70,
    /// Work was dropped at shutdown.
    Dropped = 75,
    /// Mistakes in the configuration.
    Config = 78,
    /// Ended by SIGINT (Ctrl-C); the shells' number.
    Interrupted = 130,
    /// Ended by SIGTERM.
    Terminated = 143,
}

impl From<&AppError> for Exit {
    fn from(error: &AppError) -> Exit {
        match error {
            AppError::Backend(_) => Exit::Unavailable,
            AppError::Dropped(_) => Exit::Dropped,
            AppError::Failed(_) => Exit::Failure,
        }
    }
}

impl Exit {
    /// If a signal ended the work, lets it end the process too: after an exit code, whatever its number, a shell's loop would go
    /// on. Does nothing if no signal can end the process, as for the first process in a container.
    fn by_signal(self) {
        let signal = match self {
            Exit::Interrupted => SIGINT,
            Exit::Terminated => SIGTERM,
            _ => return,
        };
        if std::process::id() != 1 {
            // Does not return if the signal can end the process.
            let _ = emulate_default_handler(signal);
        }
    }
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed (health: not healthy), 64 wrong usage, 66 an input \
    file is missing or a folder has none, 69 nothing to run the models on, or no server at the address, 70 a \
    bug in Ocelli, 75 work was dropped at shutdown, 78 mistakes in the configuration, 130 or 143 interrupted.";

/// The command line as clap sees it.
pub fn command() -> Command {
    shown().subcommand(worker::command())
}

/// The part of it that is shown to users. Flags are generated from the table of options.
fn shown() -> Command {
    let version = match COMMIT {
        "" => VERSION.to_string(),
        commit => format!("{VERSION} ({commit})"),
    };
    let with_options = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args(options::arguments()).after_long_help(options::PRECEDENCE)
    };
    // These commands accept all options as well, but list only the common ones in their help.
    let beside_options = |name: &'static str, about: &'static str| {
        let shown = options::arguments().into_iter().map(options::hidden_unless_common);
        Command::new(name).about(about).args(shown).after_help(options::ELSEWHERE)
    };
    Command::new("ocelli")
        .about("Runs image models behind HTTP")
        .version(version)
        .after_help(EXIT_CODES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(with_options("serve", "Serve until SIGTERM, then drain"))
        .subcommand(beside_options(
            "check",
            "Check the configuration and every model: load it and run it once",
        ))
        .subcommand(
            beside_options("devices", "Show what models can run on here, or the devices of a running server")
                .args(devices::arguments()),
        )
        .subcommand(
            beside_options("predict", "Run files through a model: on a server, or in this process")
                .args(predict::arguments()),
        )
        .subcommand(bench::command())
        .subcommand(
            beside_options("tune", "Find the batches, instances and threads that suit a model")
                .args(tune::arguments()),
        )
        .subcommand(with_options(
            "config",
            "Print the options in effect as a configuration file, with the source of each",
        ))
        .subcommand(
            beside_options("health", "Ask a running server whether it is live or ready")
                .arg(
                    Arg::new("probe")
                        .value_name("PROBE")
                        .value_parser(["live", "ready"])
                        .default_value("ready")
                        .help("What to ask for"),
                )
                .arg(
                    Arg::new("url")
                        .long("url")
                        .value_name("http://HOST[:PORT]")
                        .help("The server to ask; default: admin_listen of the configuration, or listen"),
                ),
        )
        .subcommand(
            Command::new("completions").about("Print completions for a shell").arg(
                Arg::new("shell")
                    .value_name("SHELL")
                    .required(true)
                    .value_parser(clap::value_parser!(Shell))
                    .help("bash, elvish, fish, powershell or zsh"),
            ),
        )
}

/// Parses and runs.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    report_nothing();
    let mut streams = Streams {
        colour: io::stdout().is_terminal()
            && io::stderr().is_terminal()
            && colours(|name| std::env::var_os(name)),
        out: &mut io::stdout(),
        err: &mut io::stderr(),
    };
    // The panic message has been printed by then.
    let exit = catch_unwind(AssertUnwindSafe(|| streams.run(arguments))).unwrap_or(Exit::Internal);
    // A closed reader is handled elsewhere.
    let _ = io::stdout().flush();
    exit.by_signal();
    ExitCode::from(exit as u8)
}

/// Where a run writes its output. (Except for the log, which belongs to the process.)
struct Streams<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    colour: bool,
}

impl Streams<'_> {
    fn run(&mut self, arguments: impl IntoIterator<Item = OsString>) -> Exit {
        let matches = match command().try_get_matches_from(arguments) {
            Ok(matches) => matches,
            Err(error) => return self.usage(&error),
        };
        match matches.subcommand() {
            Some(("serve", matches)) => {
                self.with_places(matches, true, |streams, config| streams.ended(app::serve(config)))
            }
            Some(("check", matches)) => {
                self.with_places(matches, false, |streams, config| streams.check(&config))
            }
            Some(("devices", matches)) => self.devices(matches),
            Some(("predict", matches)) => self.predict(matches),
            Some(("bench", matches)) => self.bench(matches),
            Some(("tune", matches)) => {
                self.with_config(matches, |streams, loaded| streams.tune(&loaded.config, matches))
            }
            Some(("config", matches)) => {
                self.with_config(matches, |streams, loaded| streams.print(&show::settings(&loaded.settings)))
            }
            Some(("health", matches)) => self.health(matches),
            Some(("worker", matches)) => match worker::run(matches) {
                Ok(()) => Exit::Ok,
                Err(reason) => self.complain(&reason, Exit::Failure),
            },
            Some(("completions", matches)) => {
                let shell = *matches.get_one::<Shell>("shell").expect("clap requires the shell");
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut shown(), "ocelli", &mut script);
                self.print(&String::from_utf8_lossy(&script))
            }
            other => unreachable!("clap knows no other subcommand: {other:?}"),
        }
    }

    /// Prints help or the version, which are no errors; anything else is wrong usage.
    fn usage(&mut self, error: &clap::Error) -> Exit {
        // The same without colours, to look into.
        let plain = error.render().to_string();
        let text = if self.colour { error.render().ansi().to_string() } else { plain.clone() };
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => self.print(&text),
            _ => {
                let is_word = matches!(
                    error.get(ContextKind::InvalidArg),
                    Some(ContextValue::String(word)) if !word.starts_with('-')
                );
                let takes_models =
                    ["ocelli serve ", "ocelli check "].iter().any(|command| plain.contains(command));
                let hint = match error.kind() == ErrorKind::UnknownArgument && is_word && takes_models {
                    true => "\nThe folder of the models is named with --models PATH or OCELLI_MODELS.\n",
                    false => "",
                };
                // If standard error is closed, the exit code still reports it.
                let _ =
                    self.err.write_all(text.as_bytes()).and_then(|()| self.err.write_all(hint.as_bytes()));
                Exit::Usage
            }
        }
    }

    fn with_config(&mut self, matches: &ArgMatches, then: impl FnOnce(&mut Self, Loaded) -> Exit) -> Exit {
        match config::load(&options::sources(matches)) {
            Ok(loaded) => then(self, loaded),
            Err(error) => self.complain(&error, Exit::Config),
        }
    }

    /// The same, and also checks that what the configuration names exists.
    fn with_places(
        &mut self,
        matches: &ArgMatches,
        serves: bool,
        then: impl FnOnce(&mut Self, Config) -> Exit,
    ) -> Exit {
        match config::load_with(&options::sources(matches), |config| app::unfit(config, serves)) {
            Ok(loaded) => then(self, loaded.config),
            Err(error) => self.complain(&error, Exit::Config),
        }
    }

    fn ended(&mut self, result: Result<(), AppError>) -> Exit {
        match result {
            Ok(()) => Exit::Ok,
            Err(error) => self.complain(&error, Exit::from(&error)),
        }
    }

    fn check(&mut self, config: &Config) -> Exit {
        match app::check(config) {
            Ok(rows) => {
                let (table, all_well) = check::report(&rows);
                match self.print(&table) {
                    Exit::Ok if !all_well => Exit::Failure,
                    exit => exit,
                }
            }
            Err(error) => self.complain(&error, Exit::from(&error)),
        }
    }

    fn health(&mut self, matches: &ArgMatches) -> Exit {
        let probe = matches.get_one::<String>("probe").expect("clap has a default");
        if let Some(url) = matches.get_one::<String>("url") {
            return self.ask(url, probe);
        }
        self.with_config(matches, |streams, loaded| match target::default_url(&loaded.config) {
            Ok(url) => streams.ask(&url, probe),
            Err(reason) => streams.complain(&reason, Exit::Usage),
        })
    }

    fn ask(&mut self, url: &str, probe: &str) -> Exit {
        let target = match target::Target::parse(url) {
            Ok(target) => target,
            Err(reason) => return self.complain(&reason, Exit::Usage),
        };
        let answer = health::ask(&target, probe, health::TIME_MAX);
        let (line, healthy) = health::report(&target, probe, &answer);
        match (self.print(&format!("{line}\n")), healthy) {
            (Exit::Ok, true) => Exit::Ok,
            _ => Exit::Failure,
        }
    }

    /// Prints to standard output. A reader that has closed the pipe (`ocelli config | head`) is no failure.
    fn print(&mut self, text: &str) -> Exit {
        let written = self.out.write_all(text.as_bytes());
        match written.and_then(|()| self.out.flush()) {
            Ok(()) => Exit::Ok,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
            Err(error) => {
                self.complain(&format!("cannot write to the standard output: {error}"), Exit::Failure)
            }
        }
    }

    fn complain(&mut self, what: &dyn std::fmt::Display, exit: Exit) -> Exit {
        let _ = writeln!(self.err, "ocelli: {what}");
        exit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::Undone;

    /// Runs, and returns what is printed to standard output and standard error.
    fn run(arguments: &[&str]) -> (Exit, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut streams = Streams { out: &mut out, err: &mut err, colour: false };
        let exit = streams.run(["ocelli"].iter().chain(arguments).map(OsString::from));
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (exit, text(out), text(err))
    }

    fn check(arguments: &[&str], expected: Exit) {
        let (exit, out, err) = run(arguments);
        assert_eq!(exit, expected, "{out}{err}");
        assert_eq!(err.is_empty(), exit == Exit::Ok, "{err}");
        assert_eq!(out.is_empty(), exit != Exit::Ok, "{out}");
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn what_is_not_a_command_line_is_wrong_usage() {
        check(&[], Exit::Usage);
        check(&["serv"], Exit::Usage);
        check(&["serve", "--queue-item-max", "3"], Exit::Usage);
        check(&["serve", "--parts-max"], Exit::Usage);
        check(&["serve", "--parts-max", "1", "--parts-max", "2"], Exit::Usage);
        check(&["health", "alive"], Exit::Usage);
        check(&["health", "--url", "https://127.0.0.1"], Exit::Usage);
        check(&["predict", "digits", "-", "-"], Exit::Usage);
        for options in [["--models", "x"], ["--backend", "cpu"]] {
            check(&["devices", "--url", "http://127.0.0.1:1", options[0], options[1]], Exit::Usage);
        }
        check(&["completions", "tcl"], Exit::Usage);
    }

    #[test]
    fn a_server_that_is_not_there_has_its_exit_code_whoever_asks_for_it() {
        // Nobody listens on a privileged port; one that was free a moment ago may be taken by now.
        let url = "http://127.0.0.1:1";
        check(&["devices", "--url", url], Exit::Unavailable);
        check(&["bench", url, "digits"], Exit::Unavailable);
        check(&["bench", url, "--live"], Exit::Unavailable);
    }

    #[test]
    fn devices_are_looked_for_as_a_server_would() {
        let (exit, out, _) = run(&["devices"]);
        assert_eq!(exit, Exit::Ok);
        if out.contains("no GPU: ") {
            let (exit, out, err) = run(&["devices", "--backend", "gpu"]);
            assert_eq!((exit, out.contains("no GPU: ")), (Exit::Unavailable, true), "{err}");
        }
    }

    #[test]
    fn a_trial_may_take_parts_of_a_second_and_what_is_no_number_is_told_the_range() {
        // The reported mistake is the missing input.
        check(&["tune", "digits", "--seconds", "0.5", "--input", "/nowhere"], Exit::NoInput);
        let (exit, _, err) = run(&["tune", "digits", "--seconds", "soon"]);
        assert!(exit == Exit::Usage && err.contains("a number from 0.01 to 3600000"), "{err}");
    }

    #[test]
    fn input_that_is_not_there_has_its_exit_code_whoever_is_to_send_it() {
        let empty = tempfile::tempdir().expect("a folder");
        for input in [empty.path(), &empty.path().join("none.png")] {
            let input = input.to_str().expect("UTF-8");
            check(&["bench", "http://127.0.0.1:1", "digits", "--input", input], Exit::NoInput);
            check(&["tune", "digits", "--input", input], Exit::NoInput);
        }
    }

    #[test]
    fn a_server_that_never_answers_is_not_waited_for_without_end() {
        // The system accepts connections to it, and nobody reads from them.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", silent.local_addr().expect("it has one"));
        check(&["bench", &url, "digits", "--timeout-ms", "20"], Exit::Unavailable);
        check(&["bench", &url, "--live", "--timeout-ms", "20"], Exit::Unavailable);
    }

    #[test]
    fn the_arguments_of_bench_are_shown_in_the_order_in_which_they_are_read() {
        let (_, _, err) = run(&["bench", "http://127.0.0.1:1"]);
        assert!(err.contains("Usage: ocelli bench [OPTIONS] <URL> <MODEL|--live>"), "{err}");
        let (_, _, err) = run(&["bench", "digits", "http://127.0.0.1:1"]);
        assert!(err.contains("the address \"digits\" is not http://HOST[:PORT]"), "{err}");
    }

    #[test]
    fn help_and_version_are_no_failures() {
        check(&["--help"], Exit::Ok);
        check(&["serve", "--help"], Exit::Ok);
        check(&["--version"], Exit::Ok);
    }

    #[test]
    fn mistakes_in_values_are_mistakes_in_the_configuration() {
        for command in ["serve", "check", "config", "health"] {
            check(&[command, "--parts-max", "0"], Exit::Config);
            check(&[command, "--parts-max", "-1"], Exit::Config);
            check(&[command, "--config", "/no/such/file"], Exit::Config);
        }
    }

    #[test]
    fn what_options_name_and_is_not_there_is_told_with_all_other_mistakes() {
        for command in ["serve", "check"] {
            let arguments =
                [command, "--models", "/no/models", "--stack-spill-folder", "/no/spill", "--parts-max", "0"];
            let (exit, _, err) = run(&[&arguments[..], &["--listen", "127.0.0.1:0"]].concat());
            assert_eq!(exit, Exit::Config, "{err}");
            for said in [
                "mistakes in the configuration:\n",
                "  --parts-max: parts_max = \"0\": must be",
                "  --models: models = \"/no/models\": cannot read the folder that holds the models, as seen from ",
                "No such file or directory (os error 2); name it with --models or OCELLI_MODELS",
                "  --stack-spill-folder: stack_spill_folder = \"/no/spill\": cannot make a temporary file there: No such",
            ] {
                assert!(err.contains(said), "{said} is not in {err}");
            }
        }
    }

    #[test]
    fn all_mistakes_are_printed() {
        let (_, _, err) = run(&["config", "--parts-max", "0", "--backend", "tpu"]);
        assert_eq!(
            err,
            "ocelli: 2 mistakes in the configuration:\n  \
             --backend: backend = \"tpu\": must be one of auto, cpu, gpu\n  \
             --parts-max: parts_max = \"0\": must be a whole number from 1 to 100000\n"
        );
    }

    #[test]
    fn each_failure_has_its_exit_code() {
        for (error, code) in [
            (AppError::Failed(String::new()), 1),
            (AppError::Backend(String::new()), 69),
            (AppError::Dropped(Undone::default()), 75),
        ] {
            assert_eq!(Exit::from(&error) as u8, code, "{error:?}");
            assert!(EXIT_CODES.contains(&format!("{code} ")));
        }
    }

    #[test]
    fn a_folder_without_its_flag_is_told_which_where_there_is_one() {
        for (arguments, hinted) in [
            (&["check", "examples/models"][..], true),
            (&["serve", "models"], true),
            (&["check", "--modles"], false),
            (&["devices", "models"], false),
        ] {
            for colour in [false, true] {
                let arguments = [&["ocelli"][..], arguments].concat();
                let error = command().try_get_matches_from(arguments).expect_err("no such word");
                let (mut out, mut err) = (Vec::new(), Vec::new());
                let exit = Streams { out: &mut out, err: &mut err, colour }.usage(&error);
                let err = String::from_utf8(err).expect("UTF-8");
                assert_eq!((exit, err.contains("named with --models PATH")), (Exit::Usage, hinted), "{err}");
            }
        }
    }

    #[test]
    fn the_last_words_say_what_cut_the_work_short() {
        let (jobs, requests, connections) = (2, 1, 3);
        for (told, why) in [(false, "drain_timeout_ms passed"), (true, "a second signal came")] {
            let error = AppError::Dropped(Undone { jobs, requests, connections, told });
            assert_eq!(
                error.to_string(),
                format!("{why} with work left: 3 connections, 1 request and 2 jobs were dropped")
            );
        }
    }

    #[test]
    fn completions_know_every_flag_and_the_words_that_it_takes() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut shown(), "ocelli", &mut script);
            let script = String::from_utf8(script).expect("UTF-8");
            assert!(!script.contains("worker"), "{shell}: what servers start is not for people");
            for spec in config::OPTIONS {
                assert!(script.contains(&spec.flag()), "{shell}: {}", spec.name);
            }
            assert!(script.contains("human"), "{shell}");
        }
    }
}
