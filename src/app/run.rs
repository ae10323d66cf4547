//! What the commands `serve`, `check` and `devices` do, from a configuration to the end.

use super::{
    App, AppError, Core, allowed_threads, failed, memory,
    signals::{self, Signals, Starting},
};
use crate::{
    config::{Config, LogFormat},
    devices::{self, Found, Loading},
    engine::{cuda, onnx::Runtime},
    telemetry::{
        VERSION,
        logging::{self, Logging},
        traces::Traces,
    },
};
use futures_util::FutureExt;
use std::{
    convert::Infallible,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// `ocelli serve`: runs until a signal, then drains.
///
/// # Errors
/// Why it could not start, or what was left undone at the end.
pub fn serve(config: Config) -> Result<(), AppError> {
    let starting = Starting::begin().map_err(failed("cannot listen for signals"))?;
    allowed_threads::check(&config)?;
    signals::survive().map_err(failed("cannot listen for signals"))?;
    // Accepts connections and runs everything else except the data path, which has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed("cannot start the runtime"))?;
    // Kept to the end: the rest of the log is written when it is dropped.
    let logging = log(&config, traces(&config, &runtime)?)?;
    let result = runtime.block_on(async {
        let mut signals = Signals::new().map_err(failed("cannot listen for signals"))?;
        let app = App::start(config, Some(&logging)).await?;
        // Only probes were served so far: API connections are accepted on this thread, which was busy until now.
        drop(starting);
        app.log_addresses();
        let hopeless = tokio::select! {
            name = signals.next() => {
                tracing::info!(signal = name, "told to end");
                None
            }
            reason = app.hopeless() => {
                tracing::error!(reason, "the server ends");
                Some(reason)
            }
        };
        let now = CancellationToken::new();
        let second = now.clone();
        tokio::spawn(async move {
            tokio::time::sleep(ECHO).await;
            while signals.next().now_or_never().is_some() {}
            let name = signals.next().await;
            tracing::warn!(signal = name, "told again: ending now");
            second.cancel();
        });
        let undone = app.drain(&now).await;
        if undone.jobs + undone.requests + undone.connections > 0 {
            return Err(AppError::Dropped(undone));
        }
        if let Some(reason) = hopeless {
            return Err(AppError::Backend(reason));
        }
        tracing::info!("ended");
        Ok(())
    });
    // A stuck handler would hold up the exit for ever, and so would a stuck disk with log files.
    runtime.shutdown_background();
    let (tell, written) = mpsc::channel::<Infallible>();
    let write = move || drop((logging, tell));
    // If no thread can be started for it, it is dropped here.
    let _ = thread::Builder::new().name("ocelli-flush".into()).spawn(write);
    let _ = written.recv_timeout(LOG_TIME_MAX);
    result
}

/// How long the rest of the log may take to be written at the end.
const LOG_TIME_MAX: Duration = Duration::from_secs(3);

/// A signal that is repeated within this time counts as the same one: supervisors signal the process and its group.
const ECHO: Duration = Duration::from_millis(500);

/// The traces, if there is a collector. Spans are sent on this runtime.
fn traces(config: &Config, runtime: &tokio::runtime::Runtime) -> Result<Option<Arc<Traces>>, AppError> {
    let _inside = runtime.enter();
    let endpoint = config.otlp_endpoint.as_deref();
    let traces = endpoint.map(|endpoint| Traces::start(endpoint, config.trace_sample_ratio, VERSION));
    traces.transpose().map_err(AppError::Failed)
}

fn log(config: &Config, traces: Option<Arc<Traces>>) -> Result<Logging, AppError> {
    let format = match config.log_format {
        LogFormat::Auto => logging::Format::auto(),
        LogFormat::Human => logging::Format::human(),
        LogFormat::Json => logging::Format::Json,
    };
    logging::init(format, &config.log_filter, config.log_dir.as_deref(), traces).map_err(failed("cannot log"))
}

/// One row of `ocelli check`.
pub struct Checked {
    /// The model's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What was loaded, or why it cannot be served.
    pub result: Result<Loading, String>,
}

/// `ocelli check`: loads every model, runs forward passes of each, and returns the results. Serves nothing.
///
/// # Errors
/// As [`Core::start`].
pub fn check(config: &Config) -> Result<Vec<Checked>, AppError> {
    allowed_threads::check_to_load(config)?;
    // Requests of a manifest that have no effect are logged.
    let logging = log(config, None)?;
    let core = Core::start(config, Some(&logging))?;
    core.devices.announce(&core.found);
    core.devices.decided();
    let rows = core
        .found
        .iter()
        .map(|found| Checked {
            name: found.name.clone(),
            version: found.version.clone(),
            result: core.devices.load(found),
        })
        .collect();
    core.queue.close();
    core.devices.join();
    Ok(rows)
}

/// `ocelli devices`: looks at the devices. Nothing is loaded or served.
pub fn find_devices(config: &Config) -> Found {
    if let Some(folder) = &config.kernel_cache_folder {
        cuda::keep_kernels_in(folder);
    }
    let runtime = Runtime::load(&config.onnx_runtime, memory::of_models(config));
    devices::find(config.compute_threads, config.nvml_library.as_deref(), &runtime)
}
