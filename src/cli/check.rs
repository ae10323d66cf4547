//! `ocelli check`: a row for every model, loaded and run once.

use crate::{
    app::Checked,
    engine::{Dim, Signature},
};

/// The table of what was checked, and whether all of it can be served.
pub(super) fn report(rows: &[Checked]) -> (String, bool) {
    if rows.is_empty() {
        return ("no models found\n".into(), false);
    }
    let mut table =
        vec![["MODEL", "VERSION", "TASK", "INPUT", "BATCH", "LOAD", "CANARY", "VERDICT"].map(str::to_owned)];
    table.extend(rows.iter().map(row));
    let widths: Vec<usize> =
        (0..8).map(|column| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &table {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    (text, rows.iter().all(|row| row.result.is_ok()))
}

fn row(checked: &Checked) -> [String; 8] {
    let (name, version) = (checked.name.clone(), checked.version.clone());
    match &checked.result {
        Ok(loading) => {
            let model = &loading.model;
            let ms = |duration: std::time::Duration| format!("{:.1} ms", duration.as_secs_f64() * 1e3);
            let sizes: Vec<String> = model.rules.sizes.iter().map(usize::to_string).collect();
            let (load, canary) = (ms(loading.load), ms(loading.canary));
            [
                name,
                version,
                model.task.name().into(),
                input(&model.interface.signature),
                sizes.join(","),
                load,
                canary,
                "ok".into(),
            ]
        }
        Err(reason) => {
            let dash = || "-".to_owned();
            [name, version, dash(), dash(), dash(), dash(), dash(), format!("unavailable: {reason}")]
        }
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
