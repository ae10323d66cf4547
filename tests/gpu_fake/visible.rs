//! What a process is given by its environment: devices to see, a script, a file for its books.

use cudarc::driver::{CudaContext, sys::CUresult};

use crate::{
    child::in_child,
    fakes::cuda::{self, Books, FakeCuda},
    support::{code, context},
};

const THREE: &str = "name=A memory=1GiB pci=3 | name=B memory=1GiB pci=2 | name=C memory=1GiB pci=1";

/// Checks the names of the devices that are seen with `variables`.
fn check(test: &str, variables: &[(&str, &str)], expected: &[&str]) {
    let output = in_child(&format!("visible::{test}"), variables, || {
        let _fake = FakeCuda::start(THREE);
        let count = match CudaContext::device_count() {
            Ok(count) => usize::try_from(count).unwrap(),
            // Before the first context nothing is initialised.
            Err(_) => 0,
        };
        let names: Vec<String> = (0..count).map(|ordinal| context(ordinal).name().unwrap()).collect();
        assert_eq!(names, expected);
        if expected.is_empty() {
            assert_eq!(code(CudaContext::new(0)), CUresult::CUDA_ERROR_NO_DEVICE);
        }
    });
    if let Some(output) = output {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn devices_are_seen_in_the_order_of_the_list_up_to_the_first_that_is_none() {
    let test = "devices_are_seen_in_the_order_of_the_list_up_to_the_first_that_is_none";
    check(test, &[("CUDA_VISIBLE_DEVICES", "2,0,7,1")], &["C", "A"]);
}

#[test]
fn devices_are_seen_by_the_beginning_of_their_uuid() {
    let test = "devices_are_seen_by_the_beginning_of_their_uuid";
    check(test, &[("CUDA_VISIBLE_DEVICES", "GPU-fa000000-0000-0000-0000-000000000002")], &["B"]);
}

#[test]
fn an_empty_list_hides_all_devices() {
    check("an_empty_list_hides_all_devices", &[("CUDA_VISIBLE_DEVICES", "")], &[]);
}

#[test]
fn numbers_follow_the_bus_where_that_is_asked_for() {
    let test = "numbers_follow_the_bus_where_that_is_asked_for";
    check(test, &[("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", "0,1")], &["C", "B"]);
}

#[test]
fn a_process_takes_its_script_from_the_environment_and_leaves_its_books() {
    let path = "visible::a_process_takes_its_script_from_the_environment_and_leaves_its_books";
    let file = tempfile::NamedTempFile::new().unwrap();
    let script = "devices name=Mine memory=8GiB; fault on=cuStreamCreate* code=2";
    let variables = [("FAKE_CUDA", script), ("FAKE_CUDA_BOOKS", file.path().to_str().unwrap())];
    let output = in_child(path, &variables, || {
        cuda::load();
        let context = context(0);
        assert_eq!(context.name().unwrap(), "Mine");
        assert_eq!(code(context.new_stream()), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        // Never given back.
        std::mem::forget(context);
    });
    let Some(output) = output else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let books: Books = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    assert_eq!((books.devices[0].name.as_str(), books.devices[0].contexts), ("Mine", 1));
}
