//! `ocelli devices`: what models could run on here, and why not where not; or what a running server says of its devices.

use super::{
    Exit, Streams,
    health::{self, Target},
    table::{mib, table},
};
use crate::{
    app,
    devices::{Found, FoundGpu, probe::others::Others},
};
use clap::{Arg, ArgMatches};
use serde_json::Value;

/// What the command takes beside the options.
pub(super) fn arguments() -> [Arg; 1] {
    [Arg::new("url").long("url").value_name("http://HOST[:PORT]").help(
        "A running server, whose devices are shown: their states, reasons, memory and who else is there",
    )]
}

impl Streams<'_> {
    /// `ocelli devices`.
    pub(super) fn devices(&mut self, matches: &ArgMatches) -> Exit {
        match matches.get_one::<String>("url") {
            None => self.with_config(matches, |streams, loaded| {
                streams.print(&here(&app::find_devices(&loaded.config)))
            }),
            Some(url) => match Target::parse(url) {
                Err(reason) => self.complain(&reason, Exit::Usage),
                Ok(target) => match ask(&target) {
                    Ok(text) => self.print(&text),
                    Err(reason) => self.complain(&format!("{url}: {reason}"), Exit::Failure),
                },
            },
        }
    }
}

/// The table of this machine's devices.
fn here(found: &Found) -> String {
    let header =
        ["DEVICE", "ID", "NAME", "CAPABILITY", "MEMORY", "FREE", "OTHERS", "USED", "PCI", "NUMA", "VERDICT"];
    let cpu = {
        let threads = format!("{} threads, {}", found.threads, found.instructions);
        let mut cells = vec!["cpu".to_owned(), "cpu".to_owned(), threads];
        cells.resize_with(header.len() - 1, dash);
        cells.push("ok".to_owned());
        cells
    };
    let mut lines = vec![header.map(str::to_owned).to_vec(), cpu];
    let driver = match &found.gpus {
        Ok((version, gpus)) => {
            lines.extend(gpus.iter().map(line));
            let reasons = gpus.iter().filter(|found| found.free.is_ok()).filter_map(|found| {
                let reason = found.no_networks.as_ref()?;
                Some(format!("gpu:{} takes no networks: {reason}\n", found.gpu.ordinal))
            });
            format!("CUDA driver: knows CUDA {version}\n") + &reasons.collect::<String>()
        }
        Err(reason) => format!("no GPU: {reason}\n"),
    };
    table(&lines) + &driver
}

fn dash() -> String {
    "-".to_owned()
}

fn line(found: &FoundGpu) -> Vec<String> {
    let FoundGpu { gpu, free, others, utilization_percent, contended, .. } = found;
    let (major, minor) = gpu.capability;
    let others = others.as_ref().map_or_else(dash, |others| match others {
        Others::Processes(list) => {
            let bytes = others.memory().map(|bytes| format!(", {}", mib(bytes))).unwrap_or_default();
            format!("{} processes{bytes}", list.len())
        }
        Others::Memory(bytes) => mib(*bytes),
        Others::Unknown => dash(),
    });
    vec![
        format!("gpu:{}", gpu.ordinal),
        gpu.id.clone(),
        gpu.name.clone(),
        format!("{major}.{minor}"),
        mib(gpu.memory_bytes),
        free.as_ref().map_or_else(|_| dash(), |free| mib(*free)),
        others,
        utilization_percent.map_or_else(dash, |percent| format!("{percent} %")),
        gpu.pci.clone(),
        gpu.numa_node.map_or_else(dash, |node| node.to_string()),
        match (free, contended) {
            (Err(reason), _) => format!("cannot be used: {reason}"),
            (Ok(_), Some(contention)) => format!("contended: {contention}"),
            (Ok(_), None) => "ok".to_owned(),
        },
    ]
}

/// The table of a server's devices.
fn ask(target: &Target) -> Result<String, String> {
    let (status, body) = health::get(target, "/v2/devices", health::TIME_MAX)?;
    let told: Value = serde_json::from_str(&body).map_err(|_| {
        format!("status {status}, and what it says is not JSON: it is no server of this version")
    })?;
    match (status, told["devices"].as_array()) {
        (200, Some(devices)) => Ok(there(devices)),
        _ => Err(told["error"].as_str().map_or_else(|| format!("status {status}"), str::to_owned)),
    }
}

fn there(devices: &[Value]) -> String {
    let header =
        ["ID", "NAME", "STATE", "FOR", "FREE", "OURS", "OTHERS", "NEEDED", "USED", "VERDICT", "REASON"];
    let mut lines = vec![header.map(str::to_owned).to_vec()];
    lines.extend(devices.iter().map(|device| {
        let text =
            |value: &Value| value.as_str().filter(|text| !text.is_empty()).map_or_else(dash, str::to_owned);
        let bytes = |name: &str| device["memory"][name].as_u64().map_or_else(dash, mib);
        let others = match device["other_processes"].as_array() {
            Some(list) => format!("{} processes, {}", list.len(), bytes("others_bytes")),
            None => bytes("others_bytes"),
        };
        vec![
            text(&device["id"]),
            text(&device["name"]),
            text(&device["state"]),
            device["since_s"].as_f64().map_or_else(dash, |seconds| format!("{seconds:.0} s")),
            bytes("free_bytes"),
            bytes("own_bytes"),
            others,
            bytes("needed_bytes"),
            device["utilization_percent"].as_u64().map_or_else(dash, |percent| format!("{percent} %")),
            text(&device["verdict"]),
            text(&device["reason"]),
        ]
    }));
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let reasons = devices.iter().flat_map(|device| {
        let id = text(&device["id"]);
        let networks = device["no_networks"].as_str().map(|why| format!("{id} takes no networks: {why}\n"));
        let refused = device["refused_models"].as_array().into_iter().flatten().map(move |refused| {
            format!("{id} cannot have {}: {}\n", text(&refused["model"]), text(&refused["reason"]))
        });
        networks.into_iter().chain(refused)
    });
    table(&lines) + &reasons.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_machine_without_a_gpu_says_why_below_its_cpu() {
        let found =
            Found { threads: 4, instructions: "avx2".into(), gpus: Err("no CUDA driver is found".into()) };
        assert_eq!(
            here(&found),
            "DEVICE  ID   NAME             CAPABILITY  MEMORY  FREE  OTHERS  USED  PCI  NUMA  VERDICT\n\
             cpu     cpu  4 threads, avx2  -           -       -     -       -     -    -     ok\n\
             no GPU: no CUDA driver is found\n"
        );
    }

    #[test]
    fn a_servers_devices_are_shown_with_what_it_tells_of_them() {
        let devices = [
            json!({"id": "GPU-1", "name": "H200", "state": "waiting", "since_s": 12.4, "reason": "others use it",
                "verdict": "contended", "utilization_percent": 97, "other_processes": [{"pid": 7, "memory_bytes": 1}],
                "no_networks": "it is too old", "refused_models": [{"model": "large", "reason": "no room"}],
                "memory": {"free_bytes": 1 << 20, "own_bytes": 0, "others_bytes": 3 << 20, "needed_bytes": 2 << 20}}),
            json!({"id": "cpu", "name": null, "state": "serving", "since_s": 3.0, "reason": "", "verdict": "",
                "utilization_percent": null, "other_processes": null, "memory": {}}),
        ];
        assert_eq!(
            there(&devices),
            "ID     NAME  STATE    FOR   FREE     OURS     OTHERS                NEEDED   USED  VERDICT    REASON\n\
             GPU-1  H200  waiting  12 s  1.0 MiB  0.0 MiB  1 processes, 3.0 MiB  2.0 MiB  97 %  contended  others use it\n\
             cpu    -     serving  3 s   -        -        -                     -        -     -          -\n\
             GPU-1 takes no networks: it is too old\n\
             GPU-1 cannot have large: no room\n"
        );
    }
}
