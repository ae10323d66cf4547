//! Formats the memory that models hold on GPUs, and how many instances fit, for the commands' output.

use super::table::{mib, table};
use crate::status::HeldModel;

/// The memory of one instance: the model itself, and its batches at the smallest and the largest size, with the part of that for
/// copying batches in and out. Batches of whole frames are listed separately.
pub(super) fn memory(held: &HeldModel) -> String {
    let batch = |(items, bytes, staging): &(usize, u64, Option<u64>)| {
        let staging = staging.map_or(String::new(), |bytes| format!(" ({} staging)", mib(bytes)));
        format!("{} at {items}{staging}", mib(*bytes))
    };
    let batches: Vec<String> = match held.batches.as_slice() {
        [first, .., last] => vec![batch(first), batch(last)],
        few => few.iter().map(batch).collect(),
    };
    let frames = match held.frames_bytes {
        0 => String::new(),
        bytes => format!(" + {} for frames", mib(bytes)),
    };
    format!("{} + {}{frames}", mib(held.weights_bytes), batches.join(", "))
}

/// Instances loaded, out of those that fit.
pub(super) fn fits(held: &HeldModel) -> String {
    format!("{} of {}", held.instances, held.instances_max)
}

/// The memory of each model on each GPU, a row for each batch size; empty if there is none.
pub(super) fn rows(held: &[(String, HeldModel)]) -> String {
    if held.is_empty() {
        return String::new();
    }
    let header = ["MODEL", "VERSION", "DEVICE", "FITS", "WEIGHTS", "FRAMES", "BATCH", "BUFFERS", "STAGING"];
    let of = |(device, held): &(String, HeldModel)| -> Vec<Vec<String>> {
        let mut begins = vec![
            held.name.clone(),
            held.version.clone(),
            device.clone(),
            fits(held),
            mib(held.weights_bytes),
            mib(held.frames_bytes),
        ];
        let row = |(items, bytes, staging): &(usize, u64, Option<u64>)| {
            let mut row = begins.clone();
            begins.fill(String::new());
            row.extend([items.to_string(), mib(*bytes), staging.map_or("-".to_owned(), mib)]);
            row
        };
        held.batches.iter().map(row).collect()
    };
    table(
        &std::iter::once(header.map(str::to_owned).to_vec())
            .chain(held.iter().flat_map(of))
            .collect::<Vec<_>>(),
    )
}
