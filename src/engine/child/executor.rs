//! Where a GPU's engines run: on threads of this process, or in a process of their own. From outside the two are the same.

use super::{Child, Place, Post, Program, Recipe, Region};
use crate::engine::{
    Engine, EngineError,
    cuda::{self, Context, CudaError, Gpu, HostMemory, MemoryInfo},
    onnx::Runtime,
    staging::Memory,
};
use std::{io, path::PathBuf, sync::Arc, time::Duration};

/// How GPUs are kept apart from the server.
#[derive(Debug, Clone, Default)]
pub enum Isolation {
    /// Not at all: what a driver or a library does there, it does to the server.
    #[default]
    Thread,
    /// Each GPU has a process of its own.
    Process(Apart),
}

/// What all children have in common.
#[derive(Debug, Clone)]
pub struct Apart {
    region: Region,
    program: Program,
    onnx_runtime: Option<PathBuf>,
}

impl Isolation {
    /// A process for each of so many GPUs, which shares `bytes` of memory with this one.
    ///
    /// # Errors
    /// Where the system refuses the memory.
    pub fn process(gpus: usize, bytes: usize, onnx_runtime: Option<PathBuf>) -> io::Result<Isolation> {
        let region = Region::new(bytes, gpus)?;
        Ok(Isolation::Process(Apart { region, program: Program::own(), onnx_runtime }))
    }

    /// Bytes of memory that this process shares with all of them.
    pub fn shared_bytes(&self) -> usize {
        match self {
            Isolation::Thread => 0,
            Isolation::Process(apart) => apart.region.bytes(),
        }
    }

    /// What batches are best put together in, where that does not depend on the GPU.
    pub fn memory(&self) -> Option<Memory> {
        match self {
            Isolation::Thread => None,
            Isolation::Process(apart) => Some(Memory::Shared(apart.region.clone())),
        }
    }

    /// Takes a GPU; in this process, with host memory that was made for it before. A process of its own that takes longer for it
    /// than `patience` is ended, if that is given: threads cannot be.
    ///
    /// # Errors
    /// Why it cannot be had now.
    pub fn open(
        &self,
        gpu: &Gpu,
        host: HostMemory,
        patience: Option<Duration>,
    ) -> Result<Executor, NotOpened> {
        match self {
            Isolation::Thread => {
                // A broken context that a library keeps is what is had again, whatever broke it: this process gets no other.
                let kept = cuda::remains(gpu) == Some(true);
                let opened = Context::open_with(gpu, host).map_err(|error| match error.of_taking() {
                    EngineError::Device(_) if kept || error.ends_process() => NotOpened::Poisoned(error),
                    failed => NotOpened::Failed(failed),
                });
                opened.map(Executor::Thread)
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
    /// Something that this process ran on a GPU has left it unable to use this one. A process of its own is another one each time.
    #[error(transparent)]
    Poisoned(CudaError),
    /// Anything else.
    #[error(transparent)]
    Failed(#[from] EngineError),
}

/// A GPU that is ours.
#[derive(Debug, Clone)]
pub enum Executor {
    /// In this process.
    Thread(Arc<Context>),
    /// In one of its own.
    Process(Arc<Child>),
}

impl Executor {
    /// Has the calling thread use it, and run near it; nothing to do for one in a process of its own, whose threads do so
    /// themselves.
    ///
    /// # Errors
    /// Where it is broken.
    pub fn bind(&self) -> Result<(), EngineError> {
        match self {
            Executor::Thread(context) => Ok(context.bind()?),
            Executor::Process(_) => Ok(()),
        }
    }

    /// Makes an engine; in this process, on the thread that is to own it, and with ONNX Runtime if that is loaded here.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn make(
        &self,
        recipe: &Recipe,
        runtime: &Result<Runtime, String>,
    ) -> Result<Box<dyn Engine + Send>, EngineError> {
        match self {
            Executor::Thread(context) => recipe.make(&Place::Gpu(Arc::clone(context), runtime.clone())),
            Executor::Process(child) => Ok(Box::new(child.load(recipe)?)),
        }
    }

    /// What of its memory is free.
    ///
    /// # Errors
    /// Where it is broken.
    pub fn memory(&self) -> Result<MemoryInfo, EngineError> {
        match self {
            Executor::Thread(context) => Ok(context.memory()?),
            Executor::Process(child) => child.memory(),
        }
    }

    /// Gives memory back to the system that nothing holds.
    ///
    /// # Errors
    /// Where it is broken.
    pub fn trim(&self) -> Result<(), EngineError> {
        match self {
            Executor::Thread(context) => Ok(context.trim()?),
            Executor::Process(child) => child.trim(),
        }
    }

    /// Whether it answers as it should: a small fit, whose result is known.
    ///
    /// # Errors
    /// What it did instead.
    pub fn canary(&self) -> Result<(), EngineError> {
        match self {
            Executor::Thread(context) => cuda::canary(context),
            Executor::Process(child) => child.canary(),
        }
    }

    /// The number of its process, where it has one of its own.
    pub fn process(&self) -> Option<u32> {
        match self {
            Executor::Thread(_) => None,
            Executor::Process(child) => Some(child.id()),
        }
    }

    /// Why its process is gone, once it is.
    pub fn ended(&self) -> Option<String> {
        match self {
            Executor::Thread(_) => None,
            Executor::Process(child) => child.ended(),
        }
    }

    /// Ends its process, where it has one of its own.
    pub fn kill(&self, reason: &str) {
        match self {
            // Threads cannot be ended from outside.
            Executor::Thread(_) => {}
            Executor::Process(child) => child.kill(reason),
        }
    }
}
