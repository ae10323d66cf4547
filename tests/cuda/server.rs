//! A whole server with a GPU: the same answers as by the CPU, and how much of it a GPU is given at once.

use crate::{
    machine::{MODES, Machine, ON_GPU, Running, id, near, until},
    process::on_cpu,
    scenarios::end,
};

#[tokio::test]
async fn a_stack_gives_the_same_localizations_on_the_gpu_and_on_the_cpu_and_spots_are_found_there_too() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("count=2");
        let server = machine.serving(isolation, ON_GPU, &[]).await;
        until("both serve", async || server.device(&id(1)).await["state"] == "serving").await;
        let (rows, devices) = server.localize_on().await;
        assert!(devices.contains("GPU-") && !devices.contains("cpu"), "{devices}");
        assert!(rows.len() > 100);
        near(&rows, &expected);
        // Nothing but the search for spots has this kernel: it is run there if its fault is met. One GPU meets it.
        let other = format!("/v2/devices/{}/drain", id(1));
        assert_eq!(server.send("POST", &other, &[], "").await.status, 200);
        until("it is drained", async || server.device(&id(1)).await["state"] == "fenced").await;
        machine.tell("cuda", "fault on=kernel:spots_select code=700").await;
        near(&server.localize().await, &expected);
        server.until_said("the GPU is taken out").await;
        end(&machine, server);
    }
}

/// A server whose GPU has the fitter, and looks for spots. No call counts as stuck, on however slow a machine.
async fn searching(machine: &Machine, isolation: &str, tail: &str) -> Running {
    let server = machine.serving(isolation, tail, &[("gpu-stuck-ms", "0")]).await;
    // Who looks for the spots of a request is decided when it begins: until the GPU has the fitter, that is the host, whose sums
    // are others in their last digit.
    until("spots are found there", async || {
        assert!(!server.localize().await.is_empty());
        machine.log().iter().any(|operation| operation.kernel == "spots_select")
    })
    .await;
    server
}

/// Batches that have been copied to a GPU.
fn copied_in(machine: &Machine) -> usize {
    machine.log().iter().filter(|operation| operation.kind == "copy_in").count()
}

#[tokio::test]
async fn batches_of_one_request_are_three_deep_on_a_gpu() {
    for isolation in MODES {
        let machine = Machine::new("");
        let server =
            searching(&machine, isolation, "[placement]\ndevices = \"gpu\"\n[batch]\nitems_max = 64").await;
        let expected = server.localize().await;
        let before = copied_in(&machine);
        machine.tell("cuda", "fault on=kernel hang").await;
        let three_deep = async {
            // Nothing is fitted meanwhile, so this many can only be on their way at once.
            until("three are there", async || copied_in(&machine) >= before + 3).await;
            assert_eq!(copied_in(&machine), before + 3, "{isolation}");
            machine.tell("cuda", "release").await;
        };
        let (rows, ()) = tokio::join!(server.localize(), three_deep);
        assert_eq!(rows, expected, "{isolation}");
        end(&machine, server);
    }
}

#[tokio::test]
async fn instances_of_a_model_run_on_streams_of_their_own() {
    for isolation in MODES {
        let machine = Machine::new("");
        let tail = "[placement]\ndevices = \"gpu\"\ninstances = 2\n[batch]\nitems_max = 16";
        let server = searching(&machine, isolation, tail).await;
        let expected = server.localize().await;
        let before = copied_in(&machine);
        machine.tell("cuda", "fault on=kernel times=2 hang").await;
        let both = async {
            until("three of each are there", async || copied_in(&machine) >= before + 6).await;
            machine.tell("cuda", "release").await;
        };
        let (rows, ()) = tokio::join!(server.localize(), both);
        assert_eq!(rows, expected, "{isolation}");
        end(&machine, server);
    }
}
