//! NVML: readings, processes, events, and what it has in common with the driver.
#![allow(unsafe_code, reason = "remapped rows are only reached by the raw call")]

use std::{process, thread};

use cudarc::driver::sys::CUresult;
use nvml_wrapper::{
    Device, Nvml,
    bitmasks::{device::ThrottleReasons, event::EventTypes},
    enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold},
    enums::{device::UsedGpuMemory, event::XidError},
    error::NvmlError,
};

use crate::{
    fakes::{
        cuda::FakeCuda,
        nvml::{FakeNvml, library},
    },
    support::{allocate, code, context},
};

fn nvml() -> Nvml {
    Nvml::builder().lib_path(library().as_os_str()).init().unwrap()
}

/// The processes that compute on a GPU, and their bytes.
fn processes(device: &Device<'_>) -> Vec<(u32, Option<u64>)> {
    let memory = |used: &UsedGpuMemory| match used {
        UsedGpuMemory::Used(bytes) => Some(*bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let found = device.running_compute_processes().unwrap();
    found.iter().map(|process| (process.pid, memory(&process.used_gpu_memory))).collect()
}

#[test]
fn gpus_are_in_the_order_of_their_buses_and_found_by_uuid_and_bus() {
    let _fake = FakeNvml::start("name=Second pci=0x81 memory=80GiB | name=First pci=0x41");
    let nvml = nvml();
    assert_eq!(nvml.device_count().unwrap(), 2);
    let second = nvml.device_by_index(1).unwrap();
    assert_eq!(second.name().unwrap(), "Second");
    assert_eq!(second.pci_info().unwrap().bus_id, "00000000:81:00.0");
    assert_eq!(nvml.device_by_uuid(second.uuid().unwrap()).unwrap().index().unwrap(), 1);
    assert_eq!(nvml.device_by_pci_bus_id("0000:41:00.0").unwrap().index().unwrap(), 0);
    assert!(matches!(nvml.device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
}

#[test]
fn readings_are_what_the_script_set() {
    let fake = FakeNvml::start("memory=80GiB reserved=600MiB");
    fake.tell("set gpu=0 used=5GiB utilization=91 temperature=88 throttle=0x40 power_mw=350000 energy_mj=123456789 replays=7");
    fake.tell("set gpu=0 ecc_uncorrected=2 rows_pending=1 mig=0 pages_pending=1");
    let nvml = nvml();
    let device = nvml.device_by_index(0).unwrap();
    let memory = device.memory_info().unwrap();
    assert_eq!((memory.total, memory.used, memory.reserved), (80 << 30, 5 << 30, 600 << 20));
    assert_eq!(memory.free, (75 << 30) - (600 << 20));
    assert_eq!(device.utilization_rates().unwrap().gpu, 91);
    assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 88);
    assert_eq!(device.temperature_threshold(TemperatureThreshold::Slowdown).unwrap(), 89);
    assert_eq!(device.current_throttle_reasons().unwrap(), ThrottleReasons::HW_THERMAL_SLOWDOWN);
    assert_eq!(
        (device.power_usage().unwrap(), device.total_energy_consumption().unwrap()),
        (350_000, 123_456_789)
    );
    let ecc = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).unwrap();
    assert_eq!((ecc(MemoryError::Corrected), ecc(MemoryError::Uncorrected)), (0, 2));
    assert_eq!(
        (device.pcie_replay_counter().unwrap(), device.are_pages_pending_retired().unwrap()),
        (7, true)
    );
    let rows = nvml.lib().nvmlDeviceGetRemappedRows.as_ref().unwrap();
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (9, 9, 9, 9);
    // SAFETY: the handle is the device's, and the four words are ours.
    let result =
        unsafe { rows(device.handle(), &mut corrected, &mut uncorrected, &mut pending, &mut failed) };
    assert_eq!((result, corrected, uncorrected, pending, failed), (0, 0, 0, 1, 0));
}

#[test]
fn processes_are_listed_as_the_driver_would() {
    let fake = FakeNvml::start("");
    fake.tell("process gpu=0 pid=own memory=1GiB");
    fake.tell("process gpu=0 pid=4242 memory=7GiB");
    fake.tell("process gpu=0 pid=4243 memory=unknown");
    fake.tell("process gpu=0 pid=4244 memory=1MiB graphics");
    let nvml = nvml();
    let device = nvml.device_by_index(0).unwrap();
    let expected = [(process::id(), Some(1 << 30)), (4242, Some(7 << 30)), (4243, None)];
    assert_eq!(processes(&device), expected);
    assert_eq!(device.running_graphics_processes().unwrap()[0].pid, 4244);
    fake.tell("end gpu=0 pid=4242");
    assert_eq!(processes(&device).len(), 2);
}

#[test]
fn a_call_that_is_not_supported_or_is_missing_is_an_error_by_name() {
    let fake = FakeNvml::start("count=2");
    fake.tell("fault on=nvmlDeviceGetPowerUsage device=1 times=always code=3");
    fake.tell("set gpu=0 mig=1");
    let nvml = nvml();
    let (first, second) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    assert!(first.power_usage().is_ok());
    assert!(matches!(second.power_usage(), Err(NvmlError::NotSupported)));
    assert!(matches!(first.utilization_rates(), Err(NvmlError::NotSupported)), "a parted GPU has none");
    assert!(matches!(first.fan_speed(0), Err(NvmlError::FailedToLoadSymbol(_))));
}

#[test]
fn an_xid_wakes_who_waits_and_of_several_the_last_is_told() {
    let fake = FakeNvml::start("count=2");
    let nvml = nvml();
    let mut set = nvml.create_event_set().unwrap();
    for gpu in 0..2 {
        let device = nvml.device_by_index(gpu).unwrap();
        set =
            device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error).unwrap();
    }
    assert!(matches!(set.wait(1), Err(NvmlError::Timeout)));
    thread::scope(|scope| {
        scope.spawn(|| fake.tell("xid gpu=1 code=79"));
        let event = set.wait(60_000).unwrap();
        assert_eq!(event.device.index().unwrap(), 1);
        assert!(matches!(event.event_data, Some(XidError::Value(79))));
    });
    fake.tell("xid gpu=0 code=13");
    fake.tell("xid gpu=0 code=48");
    fake.tell("lose gpu=0");
    let event = set.wait(0).unwrap();
    assert!(matches!(event.event_data, Some(XidError::Value(48))), "{:?}", event.event_data);
    assert!(matches!(set.wait(60_000), Err(NvmlError::GpuLost)));
}

#[test]
fn a_lost_gpu_fails_its_calls_and_no_others() {
    let fake = FakeNvml::start("count=2");
    let nvml = nvml();
    let (first, second) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    fake.tell("lose gpu=0");
    assert!(matches!(first.memory_info(), Err(NvmlError::GpuLost)));
    assert!(second.memory_info().is_ok());
    fake.tell("find gpu=0");
    assert!(first.memory_info().is_ok());
}

#[test]
fn a_call_that_hangs_goes_on_when_released() {
    let fake = FakeNvml::start("");
    let nvml = nvml();
    fake.tell("fault on=nvmlDeviceGetMemoryInfo_v2 hang");
    thread::scope(|scope| {
        let hanging = scope.spawn(|| nvml.device_by_index(0).unwrap().memory_info().unwrap().total);
        // Others are not held up by it.
        assert!(nvml.device_by_index(0).unwrap().name().is_ok());
        fake.tell("release");
        assert_eq!(hanging.join().unwrap(), 16 << 30);
    });
}

#[test]
fn memory_is_the_same_for_nvml_and_the_driver() {
    let driver = FakeCuda::start("name=Small pci=0x81 memory=1GiB context=100MiB | pci=0x41 memory=2GiB");
    let fake = FakeNvml::start("follow");
    let nvml = nvml();
    // The other order: NVML goes by the bus.
    let device = nvml.device_by_index(1).unwrap();
    assert_eq!(device.name().unwrap(), "Small");
    assert!(processes(&device).is_empty());

    let context = context(0);
    let uuid: String =
        context.uuid().unwrap().bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    assert_eq!(device.uuid().unwrap().trim_start_matches("GPU-").replace('-', ""), uuid);
    let stream = context.new_stream().unwrap();
    let memory = allocate(&stream, 25 << 20).unwrap();
    assert_eq!(device.memory_info().unwrap().used, 200 << 20);
    assert_eq!(processes(&device), [(process::id(), Some(200 << 20))]);

    // Another process takes what is left: both see it.
    fake.tell("process gpu=1 pid=4242 memory=800MiB");
    assert_eq!(device.memory_info().unwrap().free, 24 << 20);
    assert_eq!(context.mem_get_info().unwrap().0, 24 << 20);
    assert_eq!(code(allocate(&stream, 25 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    fake.tell("end gpu=1 pid=4242");
    assert!(allocate(&stream, 25 << 20).is_ok());

    // In a namespace of its own, a process is listed by a number that it does not know.
    fake.tell("own pid=70001");
    assert_eq!(processes(&device)[0].0, 70001);

    fake.tell("lose gpu=1");
    assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_UNKNOWN);
    drop((memory, stream, context));
    assert_eq!(driver.books().devices[0].lost, 999);
    fake.tell("find gpu=1");
    driver.books().assert_empty();
}
