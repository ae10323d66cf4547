//! The thread that loads models: those of the start one after the other, then whatever it is told to.

use crate::{
    devices::Devices,
    error::InferError,
    http::catalog,
    models::{self, Command, Expected, Found, Given, Overrides, control::Reply},
    telemetry::logging::ModelLogs,
};
use std::{path::Path, sync::mpsc, time::Duration};

/// How often those that leave are looked at, while there are some.
const LEAVING_PAUSE: Duration = Duration::from_millis(50);

/// Loads, and does what it is told until it is told to stop.
pub(super) fn run(
    devices: &Devices,
    found: &[Found],
    commands: &mpsc::Receiver<Command>,
    (folder, logs): (&Path, &ModelLogs),
    stop: &dyn Fn() -> bool,
) {
    models::given::remove_left_behind();
    devices.load_all(found, stop);
    let mut leaving = false;
    loop {
        let command = if leaving {
            commands.recv_timeout(LEAVING_PAUSE)
        } else {
            commands.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
        };
        match command {
            Ok(Command::Load { name, overrides, reply }) => {
                answer(reply, load(devices, folder, logs, &name, &overrides));
            }
            Ok(Command::Bring { name, given, reply }) => {
                answer(Some(reply), bring(devices, logs, &name, *given));
            }
            Ok(Command::Unload { name, reply }) => answer(reply, unload(devices, &name)),
            Ok(Command::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        leaving = devices.let_go();
        logs.keep(&|name| devices.knows(name));
    }
}

fn answer(reply: Option<Reply>, result: Result<(), InferError>) {
    if let Some(reply) = reply {
        // Whoever asked may have gone.
        let _ = reply.send(result);
    }
}

fn load(
    devices: &Devices,
    folder: &Path,
    logs: &ModelLogs,
    name: &str,
    overrides: &Overrides,
) -> Result<(), InferError> {
    let failed = |reason: String| InferError::LoadFailed { name: name.to_owned(), reason };
    let mut found = models::scan_one(folder, name, overrides.versions.as_ref()).map_err(failed)?;
    if found.is_empty() {
        return Err(match devices.lists(name) {
            true => failed("nothing lies in the model folder under this name".to_owned()),
            false => InferError::UnknownModel { name: name.to_owned(), nearest: Vec::new() },
        });
    }
    for note in &overrides.notes {
        tracing::warn!(model = name, "{note}");
    }
    for found in &mut found {
        if let Ok(source) = &mut found.source {
            let may_use_gpu = devices.may_use_gpu(&source.manifest);
            let applied = overrides.apply(&mut source.manifest, may_use_gpu);
            applied.map_err(|why| InferError::BadRequest(format!("config of model {name:?}: {why}")))?;
        }
    }
    // What a configuration says without a version is of the highest. It comes first: where it is refused, the others stay as they are.
    let highest = found.iter().rposition(|found| found.source.is_ok());
    if let Some(highest) = highest {
        found[..=highest].rotate_right(1);
        if let Ok(source) = &mut found[0].source {
            let overrides = overrides.clone();
            source.expected = Expected::by(move |model| overrides.check_repeated(&catalog::config_of(model)));
        }
    }
    reload(devices, logs, name, &found)
}

/// Loads a model from what a caller sent.
fn bring(devices: &Devices, logs: &ModelLogs, name: &str, given: Given) -> Result<(), InferError> {
    // What no model can be called is not listed either.
    models::check_name(name).map_err(|reason| InferError::LoadFailed { name: name.to_owned(), reason })?;
    reload(devices, logs, name, &given.lay_out(name))
}

fn reload(devices: &Devices, logs: &ModelLogs, name: &str, found: &[Found]) -> Result<(), InferError> {
    if let Err(error) = logs.add_model(name) {
        tracing::warn!(model = name, %error, "no log file for the model");
    }
    let loaded = devices.reload(name, found);
    loaded.map_err(|reason| InferError::LoadFailed { name: name.to_owned(), reason })
}

fn unload(devices: &Devices, name: &str) -> Result<(), InferError> {
    match devices.unload(name) {
        true => Ok(()),
        false => Err(InferError::UnknownModel { name: name.to_owned(), nearest: Vec::new() }),
    }
}
