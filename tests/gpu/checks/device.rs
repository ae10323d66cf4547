//! The driver's calls as the checks make them: kernels by their PTX and name, memory with values in it, time between events.
#![allow(unsafe_code, reason = "kernels are launched with what checks give them")]

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, result, sys};
use std::{
    ffi::{CString, c_void},
    sync::Arc,
};

/// The first GPU, with a stream.
pub(crate) struct Device {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
}

/// A kernel of a module, which stays loaded.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(sys::CUfunction);

/// Memory of the device.
pub(crate) struct Memory(CudaSlice<u8>);

impl Memory {
    pub(crate) fn address(&self) -> u64 {
        self.0.device_ptr(self.0.stream()).0
    }
}

impl Device {
    pub(crate) fn open() -> Device {
        let context = CudaContext::new(0).unwrap();
        // SAFETY: checks order their streams themselves.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().unwrap();
        Device { context, stream }
    }

    /// Another stream.
    pub(crate) fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().unwrap()
    }

    /// Kernels of one text.
    pub(crate) fn kernels<const N: usize>(&self, ptx: &str, names: [&str; N]) -> [Kernel; N] {
        self.context.bind_to_thread().unwrap();
        let text = CString::new(ptx).unwrap();
        // SAFETY: a text with a zero at its end, as the driver takes it; the module is never unloaded.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }.unwrap();
        names.map(|name| {
            // SAFETY: the module is loaded.
            let found = unsafe { result::module::get_function(module, CString::new(name).unwrap()) };
            Kernel(found.unwrap_or_else(|error| panic!("no kernel {name}: {error}")))
        })
    }

    /// Bytes in which every one is 0xcd: nobody may count on zeros.
    pub(crate) fn garbage(&self, bytes: usize) -> Memory {
        let memory = self.stream.alloc_zeros::<u8>(bytes.max(16)).unwrap();
        let address = memory.device_ptr(&self.stream).0;
        // SAFETY: so many bytes were just allocated.
        unsafe { result::memset_d8_async(address, 0xcd, bytes.max(16), self.stream.cu_stream()) }.unwrap();
        Memory(memory)
    }

    pub(crate) fn zeros(&self, bytes: usize) -> Memory {
        Memory(self.stream.alloc_zeros::<u8>(bytes.max(16)).unwrap())
    }

    pub(crate) fn with<T: Copy>(&self, values: &[T]) -> Memory {
        // SAFETY: checks give numbers and structs of numbers without gaps, as many bytes as they have.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        // Of whole words, as which images are read.
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().max(16).next_multiple_of(4), 0);
        Memory(self.stream.clone_htod(&padded).unwrap())
    }

    /// The first `count` values in it.
    pub(crate) fn read<T: bytemuck::Pod>(&self, memory: &Memory, count: usize) -> Vec<T> {
        let bytes = self.stream.clone_dtoh(&memory.0).unwrap();
        self.stream.synchronize().unwrap();
        bytes[..count * size_of::<T>()]
            .chunks_exact(size_of::<T>())
            .map(bytemuck::pod_read_unaligned)
            .collect()
    }

    /// Launches a kernel, on this device's stream.
    pub(crate) fn launch(
        &self,
        kernel: Kernel,
        grid: [u32; 3],
        block: [u32; 3],
        arguments: &mut [*mut c_void],
    ) {
        launch_on(&self.stream, kernel, grid, block, 0, arguments);
    }

    /// Waits for the stream.
    pub(crate) fn wait(&self) {
        self.stream.synchronize().unwrap();
    }

    /// Milliseconds on the device from before `act` to after it.
    pub(crate) fn timed(&self, act: impl FnOnce()) -> f64 {
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let begin = self.stream.record_event(timed).unwrap();
        act();
        let end = self.stream.record_event(timed).unwrap();
        end.synchronize().unwrap();
        f64::from(begin.elapsed_ms(&end).unwrap())
    }

    /// Begins to copy between places of the device.
    pub(crate) fn copy(&self, from: &Memory, to: &Memory, bytes: usize) {
        assert!(from.0.len() >= bytes && to.0.len() >= bytes);
        // SAFETY: so many bytes are in both.
        unsafe { result::memcpy_dtod_async(to.address(), from.address(), bytes, self.stream.cu_stream()) }
            .unwrap();
    }
}

/// Launches a kernel whose arguments lie at these places.
pub(crate) fn launch_on(
    stream: &CudaStream,
    Kernel(kernel): Kernel,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: &mut [*mut c_void],
) {
    stream.context().bind_to_thread().unwrap();
    let [(gx, gy, gz), (bx, by, bz)] = [grid, block].map(|[x, y, z]| (x, y, z));
    // SAFETY: checks give what the kernel takes; what that leads to outlives the work, which they wait for.
    unsafe {
        result::launch_kernel(kernel, (gx, gy, gz), (bx, by, bz), shared, stream.cu_stream(), arguments)
    }
    .unwrap();
}

/// Where an argument lies.
pub(crate) fn at<T>(argument: &T) -> *mut c_void {
    std::ptr::from_ref(argument).cast_mut().cast()
}

/// Lets the blocks of a kernel share so many bytes, and says how many blocks a multiprocessor holds.
pub(crate) fn resident(Kernel(kernel): Kernel, threads: u32, shared: u32) -> u32 {
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let mut blocks = 0;
    // SAFETY: the kernel is loaded; one number is written.
    unsafe {
        sys::cuFuncSetAttribute(kernel, attribute, shared.cast_signed()).result().unwrap();
        let asked = sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &raw mut blocks,
            kernel,
            threads.cast_signed(),
            shared as usize,
        );
        asked.result().unwrap();
    }
    blocks.unsigned_abs()
}
