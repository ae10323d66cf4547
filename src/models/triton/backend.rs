//! Reads which of Triton's backends a `config.pbtxt` is for, and its settings for the ONNX Runtime backend: parameters and
//! execution providers. One parameter is supported. The rest has no effect and is reported by name and value.

use super::{findings::Findings, verdict};
use crate::{
    engine::onnx::gpu::ConvSearch,
    protocol::inference::{
        ModelConfig, ModelOptimizationPolicy, model_config::SchedulingChoice,
        model_optimization_policy::execution_accelerators::Accelerator,
    },
    words::clipped,
};

/// Triton's two names for what runs ONNX files: the platform, and the backend.
pub(super) const PLATFORM: &str = "onnxruntime_onnx";
pub(super) const BACKEND: &str = "onnxruntime";
/// The parameter for the search of convolution algorithms; its values are ONNX Runtime's numbers.
const CONV_SEARCH: &str = "cudnn_conv_algo_search";

/// The reason for refusing a model whose platform or backend is not ONNX Runtime.
pub(super) fn run_by_others(config: &ModelConfig) -> Option<String> {
    let ensemble = config.platform == "ensemble";
    if ensemble && matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))) {
        return Some(format!("ensemble_scheduling: {}", verdict::ENSEMBLES));
    }
    let fields = [("platform", &config.platform, PLATFORM), ("backend", &config.backend, BACKEND)];
    let others = fields.iter().filter(|(_, value, ours)| !value.is_empty() && value != ours);
    let others: Vec<_> = others
        .map(|(field, value, ours)| format!("{field} is {value:?}, and only {ours:?} is served"))
        .collect();
    let instead =
        match [&config.platform, &config.backend].map(|value| value.split('_').next().unwrap_or_default()) {
            ["ensemble", _] => verdict::ENSEMBLES,
            ["tensorrt", _] | [_, "tensorrt"] => "serve the ONNX file that the engine was made from",
            ["pytorch", _] | [_, "pytorch"] => "docs/pytorch.md says how a network is exported",
            ["tensorflow", _] | [_, "tensorflow"] => "tf2onnx makes an ONNX file of it",
            _ => "",
        };
    let instead = if instead.is_empty() { String::new() } else { format!(": {instead}") };
    (!others.is_empty()).then(|| format!("{}{instead}", others.join("; ")))
}

/// The convolution search that `parameters` ask for. Notes all other parameters.
pub(super) fn conv_search(told: &mut Findings, config: &ModelConfig) -> ConvSearch {
    let mut search = ConvSearch::default();
    for (key, value) in &config.parameters {
        let at = format!("parameters[{key:?}]");
        match (key.as_str(), value.string_value.as_str()) {
            (CONV_SEARCH, "0") => search = ConvSearch::Exhaustive,
            (CONV_SEARCH, "1") => search = ConvSearch::Heuristic,
            (CONV_SEARCH, other) => told.note(format!(
                "{at}: it is {:?}; heard are \"0\" (exhaustive) and \"1\" (heuristic, which it is now)",
                clipped(other)
            )),
            _ => told.note(format!(
                "{at}: it is for Triton's backend; the server's own options are in docs/options.md"
            )),
        }
    }
    search
}

/// Notes providers that do not run the model, and parameters for those that do. TensorRT is not enabled from here: without its
/// libraries the model would not load, and with them it builds for minutes.
pub(super) fn accelerators(told: &mut Findings, optimization: Option<&ModelOptimizationPolicy>) {
    let Some(all) = optimization.and_then(|optimization| optimization.execution_accelerators.as_ref()) else {
        return;
    };
    let mut tell = |side: &str, index: usize, accelerator: &Accelerator, why: &str| {
        let Accelerator { name, parameters } = accelerator;
        let which = if name.is_empty() { index.to_string() } else { format!("{name:?}") };
        let of = |(key, value): (&String, &String)| format!("{key} {:?}", clipped(value));
        let parameters = parameters.iter().map(of).collect::<Vec<_>>().join(", ");
        let unheard =
            if parameters.is_empty() { String::new() } else { format!("; not heard: {parameters}") };
        told.note(format!(
            "optimization.execution_accelerators.{side}_execution_accelerator[{which}]: {why}{unheard}"
        ));
    };
    for (index, accelerator) in all.gpu_execution_accelerator.iter().enumerate() {
        let why = match accelerator.name.as_str() {
            "tensorrt" => {
                "on GPUs ONNX Runtime's CUDA provider runs the model; a model.toml in the place of this file asks for TensorRT, by \
                 provider = \"tensorrt\" (and fp16 = true) in [gpu]"
            }
            "cuda" if accelerator.parameters.is_empty() => continue,
            "cuda" => {
                "it runs the model on GPUs; a model.toml in the place of this file has conv_search, tf32 and channels_last in [gpu]"
            }
            _ => "there is no such provider; on GPUs ONNX Runtime's CUDA provider runs the model",
        };
        tell("gpu", index, accelerator, why);
    }
    for (index, accelerator) in all.cpu_execution_accelerator.iter().enumerate() {
        let why = "there is no such provider; on the CPU ONNX Runtime's own kernels run the model";
        tell("cpu", index, accelerator, why);
    }
}
