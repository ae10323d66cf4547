//! A batch of ROIs in parts: what each thread fits, and where it writes.

use super::{Columns, Setting, crew::Parts, outputs, rois_of};
use crate::engine::{
    EngineError, Tensor, TensorView,
    kernels::{InstructionSet, fit_rows},
    tensor,
};
use parking_lot::Mutex;
use std::{
    mem::{self, MaybeUninit},
    ops::Range,
};

/// ROIs, the setting of their fit, and room for the results.
pub(super) struct RoiParts {
    inputs: Vec<Tensor>,
    setting: Setting,
    set: InstructionSet,
    count: usize,
    /// ROIs of a part; the last may have fewer.
    part: usize,
    columns: Columns,
    rows: Room<MaybeUninit<f32>>,
    codes: Room<[u8; 2]>,
}

impl RoiParts {
    /// `count` ROIs in `inputs`, which have been checked, in parts of `part`.
    pub(super) fn new(
        inputs: Vec<Tensor>,
        setting: Setting,
        set: InstructionSet,
        count: usize,
        part: usize,
    ) -> RoiParts {
        let columns = Columns::of(setting.model().psf());
        RoiParts {
            // Not zeroed: zeros that nobody reads take time.
            rows: Room::new(Box::new_uninit_slice(count * columns.count()).into_vec()),
            codes: Room::new(vec![[0; 2]; count]),
            inputs,
            setting,
            set,
            count,
            part,
            columns,
        }
    }
}

impl Parts for RoiParts {
    fn count(&self) -> usize {
        self.count.div_ceil(self.part)
    }

    #[allow(unsafe_code, reason = "threads write one place, each its own part of it")]
    unsafe fn work(&self, part: usize) -> Result<(), EngineError> {
        let rois = part * self.part..self.count.min((part + 1) * self.part);
        let views: Vec<TensorView<'_>> = self.inputs.iter().map(Tensor::view).collect();
        let given = rois_of(&views)?.part(rois.clone());
        let values = rois.start * self.columns.count()..rois.end * self.columns.count();
        // SAFETY: no other part has these ROIs, and this one is done once.
        let (rows, codes) = unsafe { (self.rows.range(values), self.codes.range(rois)) };
        let fitted = fit_rows(self.set, self.setting.model(), self.setting.camera(), given, rows, codes);
        fitted.map_err(|error| EngineError::Input(error.to_string()))
    }

    #[allow(unsafe_code, reason = "what was made without being filled was filled since")]
    unsafe fn outputs(&self) -> Vec<Tensor> {
        // SAFETY: each part has filled its rows.
        let rows = unsafe { self.rows.take().into_boxed_slice().assume_init() }.into_vec();
        outputs(self.columns, self.count, tensor::bytes_of(rows), tensor::bytes_of(self.codes.take()))
    }
}

/// Values that several threads write, each in its own range.
struct Room<T> {
    values: Mutex<Vec<T>>,
    first: *mut T,
    len: usize,
}

// SAFETY: whoever writes through `first` has its range for itself, as `range` demands, and values go to other threads whole.
#[allow(unsafe_code, reason = "a pointer is neither by itself")]
unsafe impl<T: Send> Send for Room<T> {}
// SAFETY: the same.
#[allow(unsafe_code, reason = "a pointer is neither by itself")]
unsafe impl<T: Send> Sync for Room<T> {}

impl<T> Room<T> {
    fn new(mut values: Vec<T>) -> Room<T> {
        Room { first: values.as_mut_ptr(), len: values.len(), values: Mutex::new(values) }
    }

    /// A range of the values.
    ///
    /// # Safety
    /// While the slice is in use, nobody else has an overlapping range, and nobody calls `take`.
    #[allow(unsafe_code, reason = "a slice that others have the rest of")]
    #[allow(clippy::mut_from_ref, reason = "each has its own")]
    unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: within the vector, which is neither grown nor dropped before it is taken, and nobody else has this range.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(range.start), range.len()) }
    }

    /// Takes all values; later calls get none.
    fn take(&self) -> Vec<T> {
        mem::take(&mut self.values.lock())
    }
}
