//! `ocelli worker`: runs a GPU's engines for the server that started it. Its standard input is a socket to that server; its
//! standard error goes to that server's log.

use crate::engine::child;
use clap::{Arg, ArgMatches, Command, value_parser};
use std::{io, os::fd::AsFd};
use tracing::level_filters::LevelFilter;

/// Hidden: only a server starts it.
pub(super) fn command() -> Command {
    let level = Arg::new("level")
        .long("level")
        .value_name("LEVEL")
        .value_parser(value_parser!(LevelFilter))
        .default_value("info")
        .help("The least important lines that the server wants");
    Command::new("worker").about("Runs a GPU for the server that starts this").hide(true).arg(level)
}

/// Serves until the server has ended or tells it to stop.
///
/// # Errors
/// If it was not started by a server, or the two have incompatible protocols.
pub(super) fn run(matches: &ArgMatches) -> Result<(), String> {
    let level = *matches.get_one::<LevelFilter>("level").expect("clap has a default");
    // The server adds the time and the device, and converts to JSON if configured.
    let lines = tracing_subscriber::fmt().without_time().with_ansi(false).with_target(false);
    lines.with_max_level(level).with_writer(io::stderr).init();
    let socket = io::stdin().as_fd().try_clone_to_owned();
    child::serve(socket.map_err(|error| format!("no socket to a server: {error}"))?)
}
