//! What a server tells of its GPUs by NVML: of whole ones, and of parts of one (MIG).

use crate::machine::{GPU, MODES, Machine, ON_GPU, until};
use serde_json::{Value, json};

#[tokio::test]
async fn of_a_part_of_a_gpu_what_is_shown_and_counted_is_the_parts_own() {
    const PART: &str = "MIG-fa000000-0000-0000-0000-000000000101";
    for isolation in MODES {
        let machine = Machine::new("part=1 memory=10GiB context=300MiB");
        let server = machine.start(isolation, &[("spots", ON_GPU)], &[]).await;
        // Its neighbours have most of the GPU, and more than the part is large.
        machine.tell("nvml", "set gpu=0 used=60GiB temperature=55").await;
        machine.tell("nvml", "process gpu=0 pid=4242 memory=60GiB").await;
        let told = async || {
            let gpu = server.device(PART).await;
            let own = gpu["memory"]["own_bytes"].as_u64();
            gpu["models"][0].is_object()
                && gpu["other_processes"] == json!([])
                && gpu["temperature_c"] == 55
                && own >= Some(300 << 20)
        };
        until("it serves", told).await;
        let gpu = server.device(PART).await;
        let number = |name: &str| gpu["memory"][name].as_u64().unwrap();
        let (total, free, own) = (number("total_bytes"), number("free_bytes"), number("own_bytes"));
        assert!(total == 10 << 30 && free + own == total, "{free} and {own} of {total}");
        assert_eq!((number("others_bytes"), &gpu["other_processes"]), (0, &json!([])));
        assert_eq!((&gpu["utilization_percent"], &gpu["mig"]), (&Value::Null, &Value::Bool(true)));
        let [model] = &gpu["models"].as_array().unwrap()[..] else { panic!("{gpu}") };
        let fits = model["instances_max"].as_u64().unwrap();
        let one = model["batches"].as_array().unwrap().last().unwrap()["bytes"].as_u64().unwrap();
        assert!(fits > 0 && fits * one <= total, "{fits} instances of {one} bytes");
        assert!(
            server.get("/metrics").await.1.contains(&format!("{{device=\"{PART}\",kind=\"free\"}} {free}"))
        );
        // What others do in the part itself is seen.
        machine.tell("nvml", "process gpu=1000 pid=77 memory=1GiB").await;
        until("the other is seen", async || server.device(PART).await["other_processes"][0]["pid"] == 77)
            .await;
        assert_eq!(server.localize_on().await.1, PART);
        server.end();
        machine.assert_empty();
    }
    let shown = Machine::new("part=1 memory=10GiB | part=2 memory=20GiB pci=1").devices();
    let rows: Vec<&str> = shown.lines().filter(|line| line.contains("MIG-")).collect();
    assert_eq!(rows.len(), 2, "{shown}");
    for (row, mib) in rows.iter().zip(["10240.0 MiB", "20480.0 MiB"]) {
        assert_eq!(row.matches(mib).count(), 2, "memory, all of it free: {shown}");
    }
}

#[tokio::test]
async fn what_nvml_tells_of_a_gpus_health_is_shown_and_what_it_does_not_tell_is_said_once() {
    let machine = Machine::new("");
    let server = machine.serving("thread", ON_GPU, &[]).await;
    machine.tell("nvml", "set gpu=0 slowdown=89 throttle=0x44 ecc_corrected=5 replays=7").await;
    until("it is told", async || server.device(GPU).await["pcie_replays"] == 7).await;
    let gpu = server.device(GPU).await;
    for (name, value) in [
        ("slowdown_c", json!(89)),
        ("shutdown_c", json!(92)),
        ("throttled", json!(["thermal", "power_cap"])),
        ("power_limit_w", json!(700.0)),
        ("ecc_corrected", json!(5)),
        ("ecc_uncorrected", json!(0)),
        ("mig", json!(false)),
    ] {
        assert_eq!(gpu[name], value, "{name}");
    }
    let (_, metrics) = server.get("/metrics").await;
    for line in [
        format!("ocelli_device_ecc_corrected_total{{device=\"{GPU}\"}} 5"),
        format!("ocelli_device_pcie_replays_total{{device=\"{GPU}\"}} 7"),
        format!("ocelli_device_throttled{{cause=\"power_brake\",device=\"{GPU}\"}} 0"),
        format!("ocelli_device_throttled{{cause=\"thermal\",device=\"{GPU}\"}} 1"),
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}");
    }
    machine.tell("nvml", "fault on=nvmlDeviceGetPowerUsage times=always code=3").await;
    until("it is missing", async || server.device(GPU).await["power_w"].is_null()).await;
    let said = server.until_said("NVML does not tell all of this GPU").await;
    assert!(said.contains(GPU) && said.contains("power_mw (") && !said.contains("energy_mj"), "{said}");
    server.end();
}
