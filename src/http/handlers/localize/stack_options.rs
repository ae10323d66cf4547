//! How stacks are read under a configuration.

use crate::{
    config::Config,
    image::stack::{self, SpillFolder},
};
use std::sync::Arc;

/// How stacks are read under a configuration, by requests and by `ocelli predict` alike.
pub(in crate::http) fn stack_options(config: &Config) -> stack::Options {
    // Without a temporary file, a stack is charged for all that it may hold: with a higher limit, none could ever be let in. The other half
    // is for the search for spots, and for other requests.
    let charged_max = usize::try_from(config.in_flight_bytes_max / 2).unwrap_or(usize::MAX);
    let limits = stack::Limits {
        side_max: config.image_side_max,
        frame_pixels_max: config.image_pixels_max,
        frames_max: config.stack_frames_max,
        memory_bytes_max: config.stack_memory_bytes_max.min(charged_max),
        spill_bytes_max: config.stack_spill_bytes_max,
    };
    let spill_folder = (config.stack_spill_bytes_max > 0).then(|| {
        let folder = &config.stack_spill_folder;
        let path = if folder.as_os_str().is_empty() { std::env::temp_dir() } else { folder.clone() };
        Arc::new(SpillFolder::new(path, config.stack_spill_total_bytes_max))
    });
    stack::Options { limits, spill_folder, file_alone: false }
}
