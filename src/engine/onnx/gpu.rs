//! What a model's author may ask for where ONNX Runtime runs it on a GPU, and how it is loaded there.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `[gpu]` of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OnGpu {
    /// What runs the nodes.
    pub provider: Provider,
    /// Whether each batch size is recorded as a CUDA graph once, and replayed.
    pub cuda_graph: CudaGraph,
    /// Whether single precision may be multiplied with 10 bits of mantissa.
    pub tf32: bool,
    /// How algorithms of convolutions are found.
    pub conv_search: ConvSearch,
    /// Whether convolutions have their channels last, as tensor cores read them.
    pub channels_last: bool,
}

impl OnGpu {
    /// Whether graphs are recorded, as far as the model allows.
    pub fn records(&self) -> bool {
        match self.cuda_graph {
            // Of TensorRT nobody has seen what they are good for.
            CudaGraph::Auto => self.provider == Provider::Cuda,
            CudaGraph::Always => true,
            CudaGraph::Never => false,
        }
    }
}

/// Whether each batch size is recorded as a CUDA graph once, and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum CudaGraph {
    /// By the CUDA provider, where that is known to work; else it is loaded without.
    #[default]
    Auto,
    /// A model of which ONNX Runtime can record none is not loaded.
    Always,
    /// Never.
    Never,
}

/// What runs a model's nodes on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Provider {
    /// ONNX Runtime's own kernels, and cuDNN's.
    #[default]
    Cuda,
    /// TensorRT, and what it has no kernel for as above.
    TensorRt {
        /// Whether it may compute in half precision.
        fp16: bool,
    },
}

impl Provider {
    /// Whether it builds programs for the GPU at hand when a model is loaded, which takes minutes.
    pub fn builds(self) -> bool {
        matches!(self, Provider::TensorRt { .. })
    }
}

/// How algorithms of convolutions are found, for each shape that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ConvSearch {
    /// By what the library knows.
    #[default]
    Heuristic,
    /// By trying all, which takes seconds for each batch size when the model is loaded.
    Exhaustive,
}

/// How a model is to be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// The model file.
    pub path: PathBuf,
    /// What its author asks for.
    pub asked: OnGpu,
    /// Items of its largest batch.
    pub items_max: usize,
    /// Bytes that it may take, where there is a limit.
    pub memory_bytes_max: Option<u64>,
    /// Instances of it that are still to be loaded on the GPU, this one included: what is free is shared by them.
    pub instances: u64,
    /// Whether none of its nodes may run on the CPU.
    pub whole: bool,
    /// The network itself runs on the CPU, on a device whose memory is the host's ([`Runtime::stand_in`](super::Runtime::stand_in)).
    pub on_host: bool,
    /// Where TensorRT keeps what it has built.
    pub cache: Option<PathBuf>,
}
