//! Where a GPU's engines run: on threads of this process, or in a child process. Both have the same interface.

use super::{Child, Place, Post, Program, Recipe};
use crate::engine::{
    Engine, EngineError,
    cuda::{self, Canary, Context, CudaError, Gpu, HostMemory, MemoryInfo},
    onnx::Runtime,
    staging::{Memory, Region},
};
use std::{io, path::PathBuf, sync::Arc, time::Duration};

/// How GPUs are isolated from the server.
#[derive(Debug, Clone, Default)]
pub enum Isolation {
    /// Not at all: a crash in a driver or a library takes the server with it.
    #[default]
    Thread,
    /// Each GPU has a process of its own.
    Process(Apart),
}

/// What all child processes share.
#[derive(Debug, Clone)]
pub struct Apart {
    region: Region,
    program: Program,
    onnx_runtime: Option<PathBuf>,
}

impl Isolation {
    /// One process for each of `gpus` GPUs, each with `bytes` of memory shared with this one.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn process(gpus: usize, bytes: usize, onnx_runtime: Option<PathBuf>) -> io::Result<Isolation> {
        let region = Region::new(bytes, gpus)?;
        Ok(Isolation::Process(Apart { region, program: Program::own(), onnx_runtime }))
    }

    /// Bytes of memory that this process shares with all children together.
    pub fn shared_bytes(&self) -> usize {
        match self {
            Isolation::Thread => 0,
            Isolation::Process(apart) => apart.region.bytes(),
        }
    }

    /// The kind of memory in which batches are best assembled, if it does not depend on the GPU.
    pub fn memory(&self) -> Option<Memory> {
        match self {
            Isolation::Thread => None,
            Isolation::Process(apart) => Some(Memory::Shared(apart.region.clone())),
        }
    }

    /// Takes a GPU. In this process, `host` is memory that was made for the GPU before. A child process that takes longer than
    /// `patience`, if given, is killed; a thread cannot be.
    ///
    /// # Errors
    /// Why the GPU cannot be taken now.
    pub fn open(
        &self,
        gpu: &Gpu,
        host: HostMemory,
        patience: Option<Duration>,
    ) -> Result<Executor, NotOpened> {
        match self {
            Isolation::Thread => {
                // If a library holds on to a broken context, this process gets that context again, whatever broke it.
                let kept = cuda::remains(gpu) == Some(true);
                let opened = Context::open_with(gpu, host).map_err(|error| match error.of_taking() {
                    EngineError::Device(_) if kept || error.ends_process() => NotOpened::Poisoned(error),
                    failed => NotOpened::Failed(failed),
                });
                opened.map(|context| Executor::Thread(context, Arc::default()))
            }
            Isolation::Process(apart) => Ok(Executor::Process(Child::start(Post {
                device: gpu.id.clone(),
                gpu: Some(gpu.id.clone()),
                program: apart.program.clone(),
                region: apart.region.clone(),
                onnx_runtime: apart.onnx_runtime.clone(),
                patience,
            })?)),
        }
    }
}

/// Why a GPU could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum NotOpened {
    /// Something that this process ran on a GPU has left the process unable to use this one. Does not occur with child processes: each
    /// attempt starts a new one.
    #[error(transparent)]
    Poisoned(CudaError),
    /// Anything else.
    #[error(transparent)]
    Failed(#[from] EngineError),
}

/// A GPU that the server has taken.
#[derive(Debug, Clone)]
pub enum Executor {
    /// Used from this process, with what checks it.
    Thread(Arc<Context>, Arc<Canary>),
    /// Used from a child process.
    Process(Arc<Child>),
}

impl Executor {
    /// Binds the calling thread to the GPU and to the processors near it. Does nothing for a child process, whose threads do so
    /// themselves.
    ///
    /// # Errors
    /// If the GPU's context is broken.
    pub fn bind(&self) -> Result<(), EngineError> {
        match self {
            Executor::Thread(context, _) => Ok(context.bind()?),
            Executor::Process(_) => Ok(()),
        }
    }

    /// Creates an engine. In this process: on the thread that is to own it, and with ONNX Runtime if that is loaded here.
    ///
    /// # Errors
    /// Why it cannot be created.
    pub fn make(
        &self,
        recipe: &Recipe,
        runtime: &Result<Runtime, String>,
    ) -> Result<Box<dyn Engine + Send>, EngineError> {
        match self {
            Executor::Thread(context, _) => recipe.make(&Place::Gpu(Arc::clone(context), runtime.clone())),
            Executor::Process(child) => Ok(Box::new(child.load(recipe)?)),
        }
    }

    /// The GPU's free memory.
    ///
    /// # Errors
    /// If the GPU's context is broken, or the child is gone.
    pub fn memory(&self) -> Result<MemoryInfo, EngineError> {
        match self {
            Executor::Thread(context, _) => Ok(context.memory()?),
            Executor::Process(child) => child.memory(),
        }
    }

    /// Gives unused memory back to the system.
    ///
    /// # Errors
    /// If the GPU's context is broken, or the child is gone.
    pub fn trim(&self) -> Result<(), EngineError> {
        match self {
            Executor::Thread(context, _) => Ok(context.trim()?),
            Executor::Process(child) => child.trim(),
        }
    }

    /// Checks that the GPU computes correctly: a small fit with a known result.
    ///
    /// # Errors
    /// What it did instead.
    pub fn canary(&self) -> Result<(), EngineError> {
        match self {
            Executor::Thread(context, canary) => canary.check(context),
            Executor::Process(child) => child.canary(),
        }
    }

    /// The id of the child process, if there is one.
    pub fn process(&self) -> Option<u32> {
        match self {
            Executor::Thread(..) => None,
            Executor::Process(child) => Some(child.id()),
        }
    }

    /// Why the child process is gone, once it is.
    pub fn ended(&self) -> Option<String> {
        match self {
            Executor::Thread(..) => None,
            Executor::Process(child) => child.ended(),
        }
    }

    /// Kills the child process, if there is one.
    pub fn kill(&self, reason: &str) {
        match self {
            // Threads cannot be ended from outside.
            Executor::Thread(..) => {}
            Executor::Process(child) => child.kill(reason),
        }
    }
}
