//! `ocelli devices`: what models could run on here, and why not where not.

use super::table::{mib, table};
use crate::devices::Found;

/// The table of devices.
pub(super) fn report(found: &Found) -> String {
    let header =
        ["DEVICE", "ID", "NAME", "CAPABILITY", "MEMORY", "FREE", "PCI", "NUMA", "VERDICT"].map(str::to_owned);
    let dash = || "-".to_owned();
    let cpu = {
        let threads = format!("{} threads, {}", found.threads, found.instructions);
        ["cpu".into(), "cpu".into(), threads, dash(), dash(), dash(), dash(), dash(), "ok".into()].to_vec()
    };
    let mut lines = vec![header.to_vec(), cpu];
    let driver = match &found.gpus {
        Ok((version, gpus)) => {
            for (gpu, free) in gpus {
                let (major, minor) = gpu.capability;
                lines.push(vec![
                    format!("gpu:{}", gpu.ordinal),
                    gpu.id.clone(),
                    gpu.name.clone(),
                    format!("{major}.{minor}"),
                    mib(gpu.memory_bytes),
                    free.as_ref().map_or_else(|_| dash(), |free| mib(*free)),
                    gpu.pci.clone(),
                    gpu.numa_node.map_or_else(dash, |node| node.to_string()),
                    free.as_ref().map_or_else(|reason| format!("cannot be used: {reason}"), |_| "ok".into()),
                ]);
            }
            format!("CUDA driver: knows CUDA {version}\n")
        }
        Err(reason) => format!("no GPU: {reason}\n"),
    };
    table(&lines) + &driver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_says_why_below_its_cpu() {
        let found =
            Found { threads: 4, instructions: "avx2".into(), gpus: Err("no CUDA driver is found".into()) };
        assert_eq!(
            report(&found),
            "DEVICE  ID   NAME             CAPABILITY  MEMORY  FREE  PCI  NUMA  VERDICT\n\
             cpu     cpu  4 threads, avx2  -           -       -     -    -     ok\n\
             no GPU: no CUDA driver is found\n"
        );
    }
}
