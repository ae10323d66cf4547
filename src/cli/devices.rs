//! `ocelli devices`: the devices of this machine that models can run on, and why others cannot be used; or those that a
//! running server reports.

use super::{
    Exit, Streams, health, held, options,
    table::{mib, table},
    target::Target,
};
use crate::{
    app::{self, AppError},
    config::{Backend, Config},
    devices::{Found, FoundGpu, LoadedOn, probe::others::Others},
    status::HeldModel,
    words,
};
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::Value;

/// The command's arguments beside the options.
pub(super) fn arguments() -> [Arg; 2] {
    [
        Arg::new("url").long("url").value_name("http://HOST[:PORT]").help(
            "A running server, to show its devices: states, reasons, memory, other processes, and what its models hold",
        ),
        Arg::new("measure").long("measure").action(ArgAction::SetTrue).conflicts_with("url").help(
            "Load the models as `ocelli check` does, and show what each holds on each GPU and how many instances of it fit",
        ),
    ]
}

impl Streams<'_> {
    /// `ocelli devices`.
    pub(super) fn devices(&mut self, matches: &ArgMatches) -> Exit {
        match matches.get_one::<String>("url") {
            None => self.with_config(matches, |streams, loaded| {
                let found = app::find_devices(&loaded.config);
                let none = loaded.config.backend == Backend::Gpu && found.gpus.is_err();
                let found = here(&found);
                if none || !matches.get_flag("measure") {
                    return match streams.print(&found) {
                        // The exit code of a server that is started with these options.
                        Exit::Ok if none => {
                            streams.complain(&"backend is gpu, but there is none", Exit::Unavailable)
                        }
                        exit => exit,
                    };
                }
                match measured(&loaded.config) {
                    Ok(held) => streams.print(&format!("{found}\n{held}")),
                    Err(error) => streams.complain(&error, Exit::from(&error)),
                }
            }),
            Some(url) => match options::beside_url(matches).map_or_else(|| Target::parse(url), Err) {
                Err(reason) => self.complain(&reason, Exit::Usage),
                Ok(target) => match ask(&target) {
                    Ok(text) => self.print(&text),
                    Err((reason, exit)) => self.complain(&format!("{url}: {reason}"), exit),
                },
            },
        }
    }
}

/// The memory that models hold on this machine's GPUs, and which models cannot be loaded there.
fn measured(config: &Config) -> Result<String, AppError> {
    let (mut held, mut reasons) = (Vec::new(), String::new());
    for checked in app::check(config)? {
        match &checked.result {
            Ok(loading) => {
                for (device, on) in &loading.on {
                    match on {
                        Ok(LoadedOn { footprint: Some(footprint), .. }) => {
                            held.push((device.to_string(), footprint.of(&checked.name, &checked.version)));
                        }
                        Ok(_) => {}
                        Err(reason) => {
                            reasons.push_str(&format!("{device} cannot have {}: {reason}\n", checked.name));
                        }
                    }
                }
            }
            Err(reason) => reasons.push_str(&format!("{} is unavailable: {reason}\n", checked.name)),
        }
    }
    if held.is_empty() {
        reasons.insert_str(0, "no model holds anything on a GPU\n");
    }
    Ok(held::rows(&held) + &reasons)
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
            format!("{}{bytes}", words::count(list.len(), "process"))
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
fn ask(target: &Target) -> Result<String, (String, Exit)> {
    let unreachable = |reason| (reason, Exit::Unavailable);
    let (status, body) = health::get(target, "/v2/devices", health::TIME_MAX).map_err(unreachable)?;
    let told: Value = serde_json::from_str(&body).map_err(|_| {
        let told = format!("status {status}, and what it says is not JSON: it is no server of this version");
        (told, Exit::Failure)
    })?;
    let other = || format!("status {status}, and what it says is not of devices: is it Ocelli?");
    let refused = || told["error"].as_str().map_or_else(other, str::to_owned);
    match (status, told["devices"].as_array()) {
        (200, Some(devices)) => Ok(there(devices, &told["no_gpu"])),
        _ => Err((refused(), Exit::Failure)),
    }
}

fn there(devices: &[Value], no_gpu: &Value) -> String {
    let header =
        ["ID", "NAME", "STATE", "FOR", "FREE", "OURS", "OTHERS", "NEEDED", "USED", "VERDICT", "REASON"];
    let mut lines = vec![header.map(str::to_owned).to_vec()];
    lines.extend(devices.iter().map(|device| {
        let text =
            |value: &Value| value.as_str().filter(|text| !text.is_empty()).map_or_else(dash, str::to_owned);
        let bytes = |name: &str| device["memory"][name].as_u64().map_or_else(dash, mib);
        let others = match device["other_processes"].as_array() {
            Some(list) => format!("{}, {}", words::count(list.len(), "process"), bytes("others_bytes")),
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
    let no_gpu = no_gpu.as_array().into_iter().flatten().map(|reason| format!("no GPU: {}\n", text(reason)));
    let held: Vec<(String, HeldModel)> = devices
        .iter()
        .flat_map(|device| {
            let id = text(&device["id"]);
            device["models"]
                .as_array()
                .into_iter()
                .flatten()
                .map(move |model| (id.clone(), held_model(model)))
        })
        .collect();
    let held = match held::rows(&held) {
        none if none.is_empty() => none,
        rows => format!("\n{rows}"),
    };
    table(&lines) + &no_gpu.chain(reasons).collect::<String>() + &held
}

/// A server's report on a model on one of its devices.
fn held_model(told: &Value) -> HeldModel {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let batch = |batch: &Value| {
        (number(&batch["items"]) as usize, number(&batch["bytes"]), batch["staging_bytes"].as_u64())
    };
    HeldModel {
        name: told["model"].as_str().unwrap_or("-").to_owned(),
        version: told["version"].as_str().unwrap_or("-").to_owned(),
        instances: number(&told["instances"]),
        instances_max: number(&told["instances_max"]),
        weights_bytes: number(&told["weights_bytes"]),
        batches: told["batches"].as_array().into_iter().flatten().map(batch).collect(),
        frames_bytes: number(&told["frames_bytes"]),
    }
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
                "models": [{"model": "spots", "version": "2", "instances": 1, "instances_max": 7, "weights_bytes": 0, "batches": [
                    {"items": 1, "bytes": 1 << 20, "staging_bytes": null}, {"items": 8, "bytes": 5 << 20, "staging_bytes": 3 << 20}],
                    "frames_bytes": 4 << 20}],
                "no_networks": "it is too old", "refused_models": [{"model": "large", "reason": "no room"}],
                "memory": {"free_bytes": 1 << 20, "own_bytes": 0, "others_bytes": 3 << 20, "needed_bytes": 2 << 20}}),
            json!({"id": "cpu", "name": null, "state": "serving", "since_s": 3.0, "reason": "", "verdict": "",
                "utilization_percent": null, "other_processes": null, "memory": {}}),
        ];
        assert_eq!(
            there(&devices, &json!(["the driver does not start"])),
            "ID     NAME  STATE    FOR   FREE     OURS     OTHERS              NEEDED   USED  VERDICT    REASON\n\
             GPU-1  H200  waiting  12 s  1.0 MiB  0.0 MiB  1 process, 3.0 MiB  2.0 MiB  97 %  contended  others use it\n\
             cpu    -     serving  3 s   -        -        -                   -        -     -          -\n\
             no GPU: the driver does not start\n\
             GPU-1 takes no networks: it is too old\n\
             GPU-1 cannot have large: no room\n\
             \n\
             MODEL  VERSION  DEVICE  FITS    WEIGHTS  FRAMES   BATCH  BUFFERS  STAGING\n\
             spots  2        GPU-1   1 of 7  0.0 MiB  4.0 MiB  1      1.0 MiB  -\n\
             \u{20}                                                 8      5.0 MiB  3.0 MiB\n"
        );
    }
}
