//! Which of Triton's backends a `config.pbtxt` is for, and what it says to that of ONNX Runtime: its parameters, and which of the
//! runtime's providers run a model. One parameter is ours as well. The rest has no effect, and is told by name and value.

use super::{map::Told, verdict};
use crate::{
    engine::onnx::gpu::ConvSearch,
    protocol::inference::{
        ModelConfig, ModelOptimizationPolicy, model_config::SchedulingChoice,
        model_optimization_policy::execution_accelerators::Accelerator,
    },
    words::clipped,
};

/// What runs ONNX files, by both of its names.
pub(super) const PLATFORM: &str = "onnxruntime_onnx";
pub(super) const BACKEND: &str = "onnxruntime";
/// How algorithms of convolutions are found, by the number that ONNX Runtime has for it.
const CONV_SEARCH: &str = "cudnn_conv_algo_search";

/// Why a model is none that we run, where it says so.
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

/// What is asked for by `parameters`.
pub(super) fn conv_search(told: &mut Told, config: &ModelConfig) -> ConvSearch {
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

/// Tells of providers that do not run the model, and of what is said to those that do. TensorRT is not taken from here: where its
/// libraries are missing the model would not be loaded, and it builds for minutes where they are not.
pub(super) fn accelerators(told: &mut Told, optimization: Option<&ModelOptimizationPolicy>) {
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
