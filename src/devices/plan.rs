//! Whether a model fits on a device, by measurements made when it was loaded. Pure.

use crate::{engine::cuda::headroom_bytes, status::HeldModel};

/// What instances of a model hold on a device, measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    /// Instances loaded.
    pub instances: u64,
    /// Bytes of one instance before its first batch.
    pub weights: u64,
    /// What one instance holds in addition, by batch size, ascending.
    pub buffers: Vec<Buffers>,
    /// More bytes that one instance holds while batches of whole frames run.
    pub frames: u64,
    /// Free bytes on the device with all of them loaded.
    pub free: u64,
    /// All bytes of the device.
    pub total: u64,
}

/// What one instance holds for batches of a size, in addition to the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buffers {
    /// Items of a batch.
    pub items: usize,
    /// Bytes, with all batches of this size in flight, including what smaller sizes have left allocated.
    pub bytes: u64,
    /// The part of these that batches are copied into and out of, where known; the rest is the engine's workspace.
    pub staging: Option<u64>,
}

impl Footprint {
    /// Bytes of one instance with the largest batches.
    pub fn instance(&self) -> u64 {
        self.weights + self.buffers.last().map_or(0, |last| last.bytes) + self.frames
    }

    /// Bytes of all loaded instances, with the largest batches.
    pub fn all(&self) -> u64 {
        self.instance().saturating_mul(self.instances)
    }

    /// Bytes that must stay free.
    pub fn headroom(&self) -> u64 {
        headroom_bytes(self.total)
    }

    /// Instances that would fit, including those that are loaded.
    pub fn instances_max(&self) -> u64 {
        let more = self.free.saturating_sub(self.headroom()) / self.instance().max(1);
        self.instances + more
    }

    /// This footprint, as the status shows it.
    pub fn of(&self, name: &str, version: &str) -> HeldModel {
        HeldModel {
            name: name.to_owned(),
            version: version.to_owned(),
            instances: self.instances,
            instances_max: self.instances_max(),
            weights_bytes: self.weights,
            batches: self.buffers.iter().map(|of| (of.items, of.bytes, of.staging)).collect(),
            frames_bytes: self.frames,
        }
    }

    /// Checks it against the manifest's limit (bytes of one instance) and against the headroom.
    ///
    /// # Errors
    /// The arithmetic of a refusal: for ever where the limit is exceeded, for now where too little stays free.
    pub fn check(&self, bytes_max: Option<u64>) -> Result<(), NoRoom> {
        let Buffers { items, bytes: buffers, .. } = self.buffers.last().copied().unwrap_or_default();
        let weights = self.weights;
        let parts = match self.frames {
            0 => format!("{weights} for the model and {buffers} for batches of {items}"),
            frames => {
                format!("{weights} for the model, {buffers} for batches of {items} and {frames} for frames")
            }
        };
        let sum = format!("{} bytes ({parts})", self.instance());
        if let Some(max) = bytes_max
            && self.instance() > max
        {
            return Err(NoRoom::Ever(format!(
                "one instance takes {sum}, more than placement.memory_bytes_max = {max}: lower batch.items_max, or raise \
                 the limit"
            )));
        }
        let headroom = self.headroom();
        if self.free < headroom {
            return Err(NoRoom::Now(format!(
                "{} instances of {sum} leave {} of {} bytes free, less than the {headroom} that are kept free: lower \
                 placement.instances or batch.items_max",
                self.instances, self.free, self.total
            )));
        }
        Ok(())
    }
}

/// What a model was measured to take on a kind of GPU, known before it is loaded on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Bytes of all of its instances with their largest batches.
    pub model: u64,
    /// Bytes that we hold besides the model: the context, and the other measured models.
    pub beside: u64,
}

/// Why a model has no room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRoom {
    /// Others hold memory that would be enough.
    Now(String),
    /// It would not fit even if nobody else were there.
    Ever(String),
}

impl Need {
    /// Checks it against a GPU that we hold, with `free` bytes besides what we hold already.
    ///
    /// # Errors
    /// The arithmetic of a refusal.
    pub fn check(&self, free: u64, total: u64) -> Result<(), NoRoom> {
        self.check_total(total).map_err(NoRoom::Ever)?;
        let (model, headroom) = (self.model, headroom_bytes(total));
        if model.saturating_add(headroom) > free {
            return Err(NoRoom::Now(format!(
                "a model takes {model} bytes there, as measured before; {free} of {total} bytes are free, of which {headroom} \
                 are kept free"
            )));
        }
        Ok(())
    }

    /// Checks it against all of a GPU's memory.
    ///
    /// # Errors
    /// The arithmetic of a refusal.
    pub fn check_total(&self, total: u64) -> Result<(), String> {
        let (Need { model, beside }, headroom) = (*self, headroom_bytes(total));
        if model.saturating_add(beside).saturating_add(headroom) > total {
            return Err(format!(
                "it takes {model} bytes there, as measured before; with {beside} bytes for the context and other models, and \
                 {headroom} that are kept free, that is more than the {total} of this GPU: lower batch.items_max or \
                 placement.instances, or place a model elsewhere"
            ));
        }
        Ok(())
    }

    /// Checks one of `instances` against the manifest's limit `bytes_max`.
    ///
    /// # Errors
    /// The arithmetic of a refusal.
    pub fn check_limit(&self, instances: u64, bytes_max: Option<u64>) -> Result<(), NoRoom> {
        let instance = self.model / instances.max(1);
        match bytes_max {
            Some(max) if instance > max => Err(NoRoom::Ever(format!(
                "one instance takes {instance} bytes there, as measured before, more than placement.memory_bytes_max = {max}: \
                 lower batch.items_max, or raise the limit"
            ))),
            _ => Ok(()),
        }
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
            buffers: [(1, MB), (16, 20 * MB)]
                .map(|(items, bytes)| Buffers { items, bytes, staging: None })
                .to_vec(),
            frames: 0,
            free: free * MB,
            total: total * MB,
        }
    }

    #[test]
    fn instances_are_counted_with_the_largest_batch_and_the_headroom_left_alone() {
        assert_eq!(footprint(256 + 3 * 120, 2048).instances_max(), 5);
        assert_eq!(footprint(256 + 3 * 120 - 1, 2048).instances_max(), 4);
        // A larger GPU keeps 2 to 3 GiB.
        assert_eq!(footprint(2048 + 120, 24_576).instances_max(), 3);
        assert_eq!(footprint(3072 + 120, 81_920).instances_max(), 3);
        assert_eq!(footprint(3072 + 119, 81_920).instances_max(), 2);
        assert_eq!(footprint(10, 2048).instances_max(), 2, "less than the headroom is left");
    }

    #[test]
    fn what_was_measured_before_is_refused_before_it_is_tried() {
        // A GPU of 2 GiB keeps 256 MiB free.
        let need = |model: u64, beside: u64| Need { model: model * MB, beside: beside * MB };
        let check = |need: Need, free: u64| need.check(free * MB, 2048 * MB);
        assert_eq!(check(need(1000, 500), 1256), Ok(()));
        let Err(NoRoom::Now(now)) = check(need(1000, 500), 1255) else { panic!("others have it") };
        assert_eq!(
            now,
            "a model takes 1048576000 bytes there, as measured before; 1315962880 of 2147483648 bytes are free, of which \
             268435456 are kept free"
        );
        assert_eq!(check(need(1292, 500), 2048), Ok(()));
        let Err(NoRoom::Ever(ever)) = check(need(1293, 500), 2048) else { panic!("it cannot be there") };
        assert!(
            ever.contains("takes 1355808768 bytes") && ever.contains("more than the 2147483648"),
            "{ever}"
        );
    }

    #[test]
    fn what_was_measured_to_take_more_than_it_may_is_refused_before_it_is_tried() {
        let need = Need { model: 240 * MB, beside: 0 };
        assert_eq!(need.check_limit(2, None), Ok(()));
        assert_eq!(need.check_limit(2, Some(120 * MB)), Ok(()));
        let Err(NoRoom::Ever(why)) = need.check_limit(2, Some(120 * MB - 1)) else { panic!() };
        assert_eq!(
            why,
            "one instance takes 125829120 bytes there, as measured before, more than placement.memory_bytes_max = \
             125829119: lower batch.items_max, or raise the limit"
        );
    }

    #[test]
    fn a_refusal_tells_the_arithmetic() {
        assert_eq!(footprint(300, 2048).check(None), Ok(()));
        assert_eq!(footprint(300, 2048).check(Some(120 * MB)), Ok(()));
        let Err(NoRoom::Ever(limited)) = footprint(300, 2048).check(Some(120 * MB - 1)) else { panic!() };
        assert_eq!(
            limited,
            "one instance takes 125829120 bytes (104857600 for the model and 20971520 for batches of 16), more than \
             placement.memory_bytes_max = 125829119: lower batch.items_max, or raise the limit"
        );
        let fitter = Footprint { frames: 30 * MB, ..footprint(256 + 150, 2048) };
        assert_eq!((fitter.check(None), fitter.instances_max()), (Ok(()), 3));
        let Err(NoRoom::Ever(limited)) = fitter.check(Some(150 * MB - 1)) else { panic!() };
        let parts = "104857600 for the model, 20971520 for batches of 16 and 31457280 for frames";
        assert!(limited.contains(&format!("157286400 bytes ({parts})")), "{limited}");
        let Err(NoRoom::Now(full)) = footprint(255, 2048).check(None) else { panic!() };
        assert!(full.contains("leave 267386880 of 2147483648 bytes free, less than the 268435456"), "{full}");
    }
}
