//! The server without its sockets: the same routes on the same queue and devices, for commands that run a model in-process. Its answers
//! are those of the server, since it runs the same code.

use super::{
    AppError, Core,
    base::{self, repository},
    gpus::Gpus,
    memory,
};
use crate::{
    config::Config,
    engine::onnx::Runtime,
    http,
    models::{self, Control, Engine, Found, Manifest, Model},
};
use axum::Router;
use std::sync::Arc;

/// One model on the devices of this machine, and the routes to it.
pub struct Local {
    core: Core,
    model: Arc<Model>,
    router: Router,
}

impl Local {
    /// Loads a model of the model folder, in this version or the highest, with changes to its manifest.
    ///
    /// Must be called inside a tokio runtime: requests run on it.
    ///
    /// # Errors
    /// If there is no such model, it cannot be loaded, or the backend cannot be had. (A fitter needs no ONNX Runtime.)
    pub fn start(
        config: &Config,
        (name, version): (&str, Option<&str>),
        change: &dyn Fn(&mut Manifest),
    ) -> Result<Local, AppError> {
        let mut found = find(config, name, version).map_err(AppError::Failed)?;
        let mut runtime = Err("ONNX Runtime is not loaded: the model did not ask for it".to_owned());
        if let Ok(source) = &mut found.source {
            change(&mut source.manifest);
            if source.manifest.engine == Engine::Onnx {
                runtime = Ok(Runtime::load(&config.onnx_runtime, memory::of_models(config))
                    .map_err(AppError::Backend)?);
            }
        }
        let core = base::start(config, Gpus::of(config)?, runtime, vec![found])?;
        core.devices.announce(&core.found);
        core.devices.decided();
        let [found] = &core.found[..] else { unreachable!("one went in") };
        let loading = core
            .devices
            .load(found)
            .map_err(|reason| AppError::Failed(format!("model {name:?}: {reason}")))?;
        // The other end is dropped: models neither come nor go.
        let (control, _) = Control::new(repository(config));
        let router = http::routes(core.front(config, Arc::new(control), None)?);
        Ok(Local { core, model: loading.model, router })
    }

    /// The routes that answer requests.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// The model as it was loaded.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Ends the devices' threads.
    pub fn end(self) {
        self.core.queue.close();
        self.core.devices.join();
    }
}

/// A model of the folder, or an error that says what there is instead.
fn find(config: &Config, name: &str, version: Option<&str>) -> Result<Found, String> {
    let mut found = models::scan(&repository(config))
        .map_err(|reason| format!("{reason}; the option models names the folder that holds them"))?;
    let there = |found: &Found| found.name == name && version.is_none_or(|version| found.version == version);
    let Some(index) = found.iter().rposition(there) else {
        let mut names: Vec<String> = match version {
            Some(_) => found.iter().map(|found| format!("{}/{}", found.name, found.version)).collect(),
            None => found.into_iter().map(|found| found.name).collect(),
        };
        names.dedup();
        let version = version.map(|version| format!(" of version {version}")).unwrap_or_default();
        let there =
            if names.is_empty() { "it is empty".into() } else { format!("there are {}", names.join(", ")) };
        return Err(format!("there is no model {name:?}{version} in {}; {there}", config.models.display()));
    };
    let found = found.swap_remove(index);
    match &found.source {
        Ok(_) => Ok(found),
        Err(reason) => Err(format!("model {name:?}: {reason}")),
    }
}
