//! What ends the process, since no caller may do it.
//!
//! Each check runs its act in a process of its own.
#![allow(unsafe_code, reason = "the acts are what a wrong unsafe block would do")]

use std::env;

use cudarc::driver::{DevicePtr, LaunchConfig, PushKernelArg, result, sys};

use crate::{
    child::in_child,
    fakes::cuda::FakeCuda,
    support::{allocate, context, kernel, pinned, scale, trap},
};

/// Runs `act` in a child, which must end with a line that has `expected` in it.
fn check(test: &str, expected: &str, act: impl FnOnce()) {
    let Some(output) = in_child(&format!("violations::{test}"), &[], act) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "the process went on");
    assert!(said.contains(expected), "{said}");
}

#[test]
fn freeing_twice() {
    check("freeing_twice", "fake CUDA driver: cuMemFree_v2: device memory", || {
        let _fake = FakeCuda::start("");
        let _context = context(0);
        // SAFETY: it is not.
        unsafe {
            let memory = result::malloc_sync(64).unwrap();
            result::free_sync(memory).unwrap();
            result::free_sync(memory).unwrap();
        }
    });
}

#[test]
fn a_copy_to_what_was_freed() {
    check("a_copy_to_what_was_freed", "fake CUDA driver: cuMemcpyHtoDAsync_v2: device memory", || {
        let _fake = FakeCuda::start("");
        let _context = context(0);
        // SAFETY: it is not.
        unsafe {
            let memory = result::malloc_sync(64).unwrap();
            result::free_sync(memory).unwrap();
            result::memcpy_htod_sync(memory, &[1u8; 8]).unwrap();
        }
    });
}

#[test]
fn a_launch_with_what_was_freed() {
    check("a_launch_with_what_was_freed", "fake CUDA driver: kernel fake_trap: device memory", || {
        let _fake = FakeCuda::start("");
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let kernel = kernel(&context, "fake_trap");
        let memory = allocate(&stream, 16).unwrap();
        let (pointer, _guard) = memory.device_ptr(&stream);
        // SAFETY: it is not.
        unsafe { result::free_async(pointer, stream.cu_stream()) }.unwrap();
        stream.synchronize().unwrap();
        trap(&stream, &kernel, &memory).unwrap();
    });
}

#[test]
fn page_locked_memory_given_back_while_a_copy_waits() {
    check(
        "page_locked_memory_given_back_while_a_copy_waits",
        "fake CUDA driver: page-locked memory at",
        || {
            let fake = FakeCuda::start("");
            let context = context(0);
            let stream = context.new_stream().unwrap();
            let mut memory = allocate(&stream, 16).unwrap();
            let mut from = pinned(&context, &[1.0; 16]);
            let pointer = from.as_mut_slice().unwrap().as_mut_ptr();
            fake.tell("fault on=memset hang");
            stream.memset_zeros(&mut memory).unwrap();
            stream.memcpy_htod(&from, &mut memory).unwrap();
            // SAFETY: it is not.
            unsafe { result::free_host(pointer.cast()) }.unwrap();
            fake.tell("release");
            stream.synchronize().unwrap();
        },
    );
}

#[test]
fn page_locked_memory_that_is_unregistered_while_a_copy_waits() {
    check("page_locked_memory_that_is_unregistered_while_a_copy_waits", "is used by a queued copy", || {
        let fake = FakeCuda::start("");
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let mut memory = allocate(&stream, 1024).unwrap();
        stream.synchronize().unwrap();
        let mut from = vec![1.0_f32; 1024];
        let start = from.as_mut_ptr().cast();
        // SAFETY: it is not.
        unsafe { sys::cuMemHostRegister_v2(start, 4096, 0).result().unwrap() };
        fake.tell("fault on=memset hang");
        stream.memset_zeros(&mut memory).unwrap();
        let (pointer, _guard) = memory.device_ptr(&stream);
        // SAFETY: it is not.
        unsafe { result::memcpy_htod_async(pointer, &from, stream.cu_stream()) }.unwrap();
        // SAFETY: it is not.
        unsafe { sys::cuMemHostUnregister(start).result().unwrap() };
    });
}

#[test]
fn memory_that_another_stream_has_not_taken_yet() {
    check(
        "memory_that_another_stream_has_not_taken_yet",
        "has not waited until another one has taken it",
        || {
            let fake = FakeCuda::start("");
            let context = context(0);
            let (one, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
            let mut first = allocate(&one, 16).unwrap();
            fake.tell("fault on=memset hang");
            one.memset_zeros(&mut first).unwrap();
            let second = allocate(&one, 16).unwrap();
            let (pointer, _guard) = second.device_ptr(&one);
            // SAFETY: it is not.
            unsafe { result::memcpy_htod_async(pointer, &[1.0_f32; 16], other.cu_stream()) }.unwrap();
        },
    );
}

#[test]
fn a_launch_with_an_address_of_the_host() {
    check("a_launch_with_an_address_of_the_host", "kernel fake_trap is given an address of the host", || {
        let _fake = FakeCuda::start("");
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let kernel = kernel(&context, "fake_trap");
        let memory = pinned(&context, &[1.0; 16]);
        let address = memory.as_slice().unwrap().as_ptr().expose_provenance() as u64;
        // SAFETY: it is not.
        unsafe { stream.launch_builder(&kernel).arg(&address).launch(LaunchConfig::for_num_elems(1)) }
            .unwrap();
    });
}

#[test]
fn what_is_no_host_memory_and_no_memory_of_a_stream_is_refused() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let (memory, other) = (allocate(&stream, 1024).unwrap(), allocate(&stream, 1024).unwrap());
    stream.synchronize().unwrap();
    let refused = Err(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    {
        let ((to, _to), (from, _from)) = (memory.device_ptr(&stream), other.device_ptr(&stream));
        let from = std::ptr::with_exposed_provenance::<std::ffi::c_void>(from as usize);
        // SAFETY: it is refused.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, 4096, stream.cu_stream()) };
        assert_eq!(copied.result().map_err(|error| error.0), refused, "a device's memory as the host's");

        let mut half = vec![0_u8; 4096];
        let start = half.as_mut_ptr();
        // SAFETY: it is there until it is unregistered.
        unsafe { sys::cuMemHostRegister_v2(start.add(2048).cast(), 2048, 0).result().unwrap() };
        // SAFETY: it is refused.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, start.cast(), 4096, stream.cu_stream()) };
        assert_eq!(copied.result().map_err(|error| error.0), refused, "half of it is registered");
        // SAFETY: it is registered.
        unsafe { sys::cuMemHostUnregister(start.add(2048).cast()).result().unwrap() };
    }
    // SAFETY: it is refused, and freed as it was taken.
    unsafe {
        let plain = result::malloc_sync(64).unwrap();
        let freed = result::free_async(plain, stream.cu_stream());
        assert_eq!(freed.map_err(|error| error.0), refused, "it is not of a stream");
        result::free_sync(plain).unwrap();
    }
    drop((memory, other, stream, context));
    fake.books().assert_empty();
}

#[test]
fn a_stream_after_its_end() {
    check("a_stream_after_its_end", "fake CUDA driver: cuStreamSynchronize: stream 1 was destroyed", || {
        let _fake = FakeCuda::start("");
        let context = context(0);
        let stream = context.new_stream().unwrap();
        // SAFETY: it is not.
        unsafe { sys::cuStreamDestroy_v2(stream.cu_stream()).result().unwrap() };
        stream.synchronize().unwrap();
    });
}

#[test]
fn a_stream_of_a_context_that_was_reset() {
    check(
        "a_stream_of_a_context_that_was_reset",
        "fake CUDA driver: cuStreamSynchronize: stream 1 was destroyed",
        || {
            let _fake = FakeCuda::start("");
            let first = context(0);
            let stream = first.new_stream().unwrap();
            // SAFETY: it is not.
            unsafe { sys::cuDevicePrimaryCtxReset_v2(0).result().unwrap() };
            // The next context has the handle of the last, so the thread does not notice.
            let _second = context(0);
            stream.synchronize().unwrap();
        },
    );
}

#[test]
fn a_kernel_that_leaves_its_memory() {
    // Seen by AddressSanitizer alone: `make test-fakes-sanitized`.
    if env::var("FAKE_SANITIZER").as_deref() != Ok("address") {
        return;
    }
    check("a_kernel_that_leaves_its_memory", "AddressSanitizer", || {
        let _fake = FakeCuda::start("");
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let (long, mut short) = (allocate(&stream, 65).unwrap(), allocate(&stream, 64).unwrap());
        scale(&stream, &kernel(&context, "fake_scale"), &long, &mut short, 2.0);
        stream.synchronize().unwrap();
    });
}
