//! Whether a model fits on a device, from what was measured when it was loaded. Pure.

use crate::engine::cuda::headroom_bytes;

/// What instances of a model hold on a device, measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    /// Instances loaded.
    pub instances: u64,
    /// Bytes of one before its first batch.
    pub weights: u64,
    /// Bytes of one beside that, with all of its batches of a size on their way; by size, ascending.
    pub buffers: Vec<(usize, u64)>,
    /// Of those of the largest size, what batches are copied into and out of, where it is told; the rest is what the engine works in.
    pub staging: Option<u64>,
    /// Free on the device with all of them loaded.
    pub free: u64,
    /// Of so many.
    pub total: u64,
}

impl Footprint {
    /// Bytes of one instance with batches of the largest size.
    pub fn instance(&self) -> u64 {
        self.weights + self.buffers.last().map_or(0, |(_, bytes)| *bytes)
    }

    /// What is to be left free.
    pub fn headroom(&self) -> u64 {
        headroom_bytes(self.total)
    }

    /// Instances that would fit, those that are loaded included.
    pub fn instances_max(&self) -> u64 {
        let more = self.free.saturating_sub(self.headroom()) / self.instance().max(1);
        self.instances + more
    }

    /// Checks it against what the manifest allows (bytes of one instance) and against the headroom.
    ///
    /// # Errors
    /// The arithmetic of a refusal.
    pub fn check(&self, bytes_max: Option<u64>) -> Result<(), String> {
        let (size, buffers) = self.buffers.last().copied().unwrap_or_default();
        let sum = format!(
            "{} bytes ({} for the model and {buffers} for batches of {size})",
            self.instance(),
            self.weights
        );
        if let Some(max) = bytes_max
            && self.instance() > max
        {
            return Err(format!(
                "one instance takes {sum}, more than placement.memory_bytes_max = {max}: lower batch.items_max, or raise \
                 the limit"
            ));
        }
        let headroom = self.headroom();
        if self.free < headroom {
            return Err(format!(
                "{} instances of {sum} leave {} of {} bytes free, less than the {headroom} that are kept free: lower \
                 placement.instances or batch.items_max",
                self.instances, self.free, self.total
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn footprint(free: u64, total: u64) -> Footprint {
        Footprint {
            instances: 2,
            weights: 100 * MB,
            buffers: vec![(1, MB), (16, 20 * MB)],
            staging: None,
            free: free * MB,
            total: total * MB,
        }
    }

    #[test]
    fn instances_are_counted_with_the_largest_batch_and_the_headroom_left_alone() {
        assert_eq!(footprint(256 + 3 * 120, 4096).instances_max(), 5);
        assert_eq!(footprint(256 + 3 * 120 - 1, 4096).instances_max(), 4);
        // A twentieth of a large GPU is more.
        assert_eq!(footprint(4096 + 120, 81_920).instances_max(), 3);
        assert_eq!(footprint(10, 4096).instances_max(), 2, "less than the headroom is left");
    }

    #[test]
    fn a_refusal_tells_the_arithmetic() {
        assert_eq!(footprint(300, 4096).check(None), Ok(()));
        assert_eq!(footprint(300, 4096).check(Some(120 * MB)), Ok(()));
        let limited = footprint(300, 4096).check(Some(120 * MB - 1)).unwrap_err();
        assert_eq!(
            limited,
            "one instance takes 125829120 bytes (104857600 for the model and 20971520 for batches of 16), more than \
             placement.memory_bytes_max = 125829119: lower batch.items_max, or raise the limit"
        );
        let full = footprint(255, 4096).check(None).unwrap_err();
        assert!(full.contains("leave 267386880 of 4294967296 bytes free, less than the 268435456"), "{full}");
    }
}
