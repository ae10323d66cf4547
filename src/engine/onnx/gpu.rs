//! The options that a model's author may set for running on a GPU with ONNX Runtime, and the parameters of loading it there.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The section `[gpu]` of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OnGpu {
    /// Which provider runs the nodes.
    pub provider: Provider,
    /// Whether each batch size is recorded as a CUDA graph once, and replayed.
    pub cuda_graph: CudaGraph,
    /// Whether single-precision products may use TF32, with 10 bits of mantissa.
    pub tf32: bool,
    /// How convolution algorithms are chosen.
    pub conv_search: ConvSearch,
    /// Whether convolutions use the channels-last layout, which tensor cores read.
    pub channels_last: bool,
}

impl OnGpu {
    /// Whether graphs are recorded, if the model allows it.
    pub fn records(&self) -> bool {
        match self.cuda_graph {
            // With TensorRT, no benefit of graphs has been measured.
            CudaGraph::Auto => self.provider == Provider::Cuda,
            CudaGraph::Always => true,
            CudaGraph::Never => false,
        }
    }
}

/// Whether each batch size is recorded as a CUDA graph once, and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum CudaGraph {
    /// With the CUDA provider, where recording is known to work; otherwise the model is loaded without graphs.
    #[default]
    Auto,
    /// Always: a model that ONNX Runtime cannot record is not loaded.
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
    /// TensorRT; nodes that it has no kernel for run as above.
    TensorRt {
        /// Whether it may compute in half precision.
        fp16: bool,
    },
}

impl Provider {
    /// Whether it compiles programs for the GPU when a model is loaded, which takes minutes.
    pub fn builds(self) -> bool {
        matches!(self, Provider::TensorRt { .. })
    }
}

/// How convolution algorithms are chosen, for each input shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ConvSearch {
    /// By the library's heuristics.
    #[default]
    Heuristic,
    /// By trying all algorithms, which takes seconds for each batch size when the model is loaded.
    Exhaustive,
}

/// How to load a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// The model file.
    pub path: PathBuf,
    /// The options that its author has set.
    pub asked: OnGpu,
    /// Items of its largest batch.
    pub items_max: usize,
    /// Bytes that it may take, where there is a limit.
    pub memory_bytes_max: Option<u64>,
    /// Instances of it that are still to be loaded on the GPU, this one included: they share the free memory.
    pub instances: u64,
    /// Whether none of its nodes may run on the CPU.
    pub whole: bool,
    /// The network itself runs on the CPU, on a device whose memory is the host's ([`Runtime::stand_in`](super::Runtime::stand_in)).
    pub on_host: bool,
    /// The folder in which TensorRT caches what it has built.
    pub cache: Option<PathBuf>,
}
