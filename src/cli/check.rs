//! `ocelli check`: a row for every model and device, loaded and run once.

use super::{held, table::table};
use crate::{
    app::Checked,
    devices::LoadedOn,
    engine::{Dim, Signature},
};
use std::sync::Arc;

const HEADER: [&str; 11] =
    ["MODEL", "VERSION", "TASK", "INPUT", "BATCH", "DEVICE", "LOAD", "CANARY", "MEMORY", "FITS", "VERDICT"];

/// The table of results, a row for each model and device, and whether every model can be served.
pub(super) fn report(rows: &[Checked]) -> (String, bool) {
    if rows.is_empty() {
        return (
            "no models found: each has a folder NAME/model.onnx in the model folder (--models)\n".into(),
            false,
        );
    }
    let mut lines = vec![HEADER.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().flat_map(lines_of));
    (table(&lines), rows.iter().all(|row| row.result.is_ok()))
}

/// A line for each device on which a model was to be loaded.
fn lines_of(checked: &Checked) -> Vec<Vec<String>> {
    let dash = || "-".to_owned();
    let loading = match &checked.result {
        Ok(loading) => loading,
        Err(reason) => {
            let mut line = vec![checked.name.clone(), checked.version.clone()];
            line.resize(HEADER.len() - 1, dash());
            line.push(format!("unavailable: {reason}"));
            return vec![line];
        }
    };
    let model = &loading.model;
    let ms = |duration: std::time::Duration| format!("{:.1} ms", duration.as_secs_f64() * 1e3);
    let line = |device: &str, largest: Option<usize>, rest: [String; 5]| {
        let there = |size: &&usize| largest.is_none_or(|largest| **size <= largest);
        let there: Vec<usize> = model.rules.sizes.iter().filter(there).copied().collect();
        let mut line = vec![
            checked.name.clone(),
            checked.version.clone(),
            model.task.name().into(),
            input(&model.interface.signature),
            sizes(&there),
            device.to_owned(),
        ];
        line.extend(rest);
        line
    };
    let of_device = |(device, on): &(Arc<str>, Result<LoadedOn, String>)| match on {
        Ok(LoadedOn { load, canary, largest, footprint }) => {
            let held = footprint.as_ref().map(|footprint| footprint.of(&checked.name, &checked.version));
            let memory = held.as_ref().map_or(dash(), held::memory);
            let fits = held.as_ref().map_or(dash(), held::fits);
            line(device, *largest, [ms(*load), ms(*canary), memory, fits, "ok".into()])
        }
        Err(reason) => line(device, None, [dash(), dash(), dash(), dash(), format!("not here: {reason}")]),
    };
    loading.on.iter().map(of_device).collect()
}

/// Batch sizes; of many, the first and the last.
fn sizes(sizes: &[usize]) -> String {
    let list = |sizes: &[usize]| sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    match sizes {
        [first @ .., last] if first.len() > 7 => format!("{},...,{last}", list(&first[..3])),
        few => list(few),
    }
}

/// Such as `FP32[?,3,224,224]`.
fn input(signature: &Signature) -> String {
    let specs: Vec<String> = signature
        .inputs
        .iter()
        .map(|spec| {
            let shape: Vec<String> = spec
                .shape
                .iter()
                .map(|dim| match dim {
                    Dim::Fixed(n) => n.to_string(),
                    Dim::Free => "?".into(),
                })
                .collect();
            format!("{}[{}]", spec.datatype, shape.join(","))
        })
        .collect();
    specs.join(" ")
}
