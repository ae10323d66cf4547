//! Checks whether ONNX Runtime can run models on a GPU here: whether it is the CUDA build, whether the libraries that it needs are
//! present, and whether it has code for the GPU. This is checked before a model is loaded: ONNX Runtime's own errors name one cause
//! at most, and some (no code for a GPU) only come with the first run.
#![allow(unsafe_code)]

use crate::engine::gpu::Version;
use object::{
    Endianness, Object, ObjectSection, ReadCache,
    elf::DT_NEEDED,
    read::elf::{Dyn, ElfFile64},
};
use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// The library that ONNX Runtime loads for CUDA; it lies beside ONNX Runtime's own.
const PROVIDER: &str = "libonnxruntime_providers_cuda.so";
/// Loaded by the provider only when a model needs it, that is, for any convolution.
const LATER: &str = "libcudnn.so.9";
/// The driver's own library, whose presence is checked elsewhere.
const DRIVER: &str = "libcuda.so";

/// The Python package that provides each library, as an alternative to the system's packages.
const PACKAGES: [(&str, &str); 6] = [
    ("libcudart.so", "nvidia-cuda-runtime"),
    ("libcublas", "nvidia-cublas"),
    ("libcurand.so", "nvidia-curand"),
    ("libcufft.so", "nvidia-cufft"),
    ("libcudnn", "nvidia-cudnn"),
    ("libnvrtc", "nvidia-cuda-nvrtc"),
];

/// What has been found in the provider's library.
#[derive(Debug, Clone)]
pub(super) struct CudaProvider {
    path: PathBuf,
    /// The major CUDA version that it was built with, if that could be read.
    cuda: Option<u32>,
    /// The GPUs that it has code for; empty if that could not be read.
    code: BTreeSet<Code>,
}

/// Machine code, or text (PTX) that drivers compile, for a compute capability: 10 × major + minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Code {
    Machine(u32),
    Text(u32),
}

impl Code {
    fn runs_on(self, capability: u32) -> bool {
        match self {
            Code::Machine(made_for) => made_for / 10 == capability / 10 && made_for <= capability,
            Code::Text(made_for) => made_for <= capability,
        }
    }

    fn capability(self) -> u32 {
        match self {
            Code::Machine(made_for) | Code::Text(made_for) => made_for,
        }
    }
}

impl CudaProvider {
    /// The provider of the ONNX Runtime at `runtime`.
    ///
    /// # Errors
    /// What is missing, and where to get it.
    pub(super) fn beside(runtime: &Path) -> Result<CudaProvider, String> {
        let path = runtime.parent().unwrap_or(Path::new("")).join(PROVIDER);
        let failed = |error: &dyn std::fmt::Display| {
            format!("cannot read {}, which CUDA needs: {error}", path.display())
        };
        let file = File::open(&path).map_err(|error| failed(&error))?;
        let (needed, fatbin) = read(&file).map_err(|error| failed(&error))?;
        missing(&needed)?;
        let cuda = needed.iter().find_map(|name| name.strip_prefix("libcudart.so.")?.parse().ok());
        let code = match fatbin {
            Some((at, bytes)) => code_of(&file, at, bytes).map_err(|error| failed(&error))?,
            None => BTreeSet::new(),
        };
        Ok(CudaProvider { path, cuda, code })
    }

    /// Checks that a driver of this CUDA version can run it, and that it has code for the GPU.
    ///
    /// # Errors
    /// The CUDA version that it was built with, or the GPUs that it was built for.
    pub(super) fn check(&self, driver: Version, (major, minor): (u32, u32)) -> Result<(), String> {
        if let Some(cuda) = self.cuda.filter(|cuda| *cuda > driver.major()) {
            return Err(format!(
                "{} is made with CUDA {cuda}, and the driver knows {driver} only: install a newer driver (580 has CUDA 13), or \
                 take a build of ONNX Runtime for CUDA {} (1.26 is the last for CUDA 12)",
                self.path.display(),
                driver.major()
            ));
        }
        let capability = 10 * major + minor;
        if self.code.is_empty() || self.code.iter().any(|code| code.runs_on(capability)) {
            return Ok(());
        }
        let made_for: BTreeSet<u32> = self.code.iter().map(|code| code.capability()).collect();
        let made_for = made_for.iter().map(|code| format!("{}.{}", code / 10, code % 10)).collect::<Vec<_>>();
        Err(format!(
            "{} has no code for compute capability {major}.{minor}, only for {}: take a build of ONNX Runtime that has",
            self.path.display(),
            made_for.join(", ")
        ))
    }
}

/// The libraries that a library needs, and where its GPU code lies in the file: offset and bytes.
type Contents = (Vec<String>, Option<(u64, u64)>);

/// Reads from a shared library which libraries it needs, and where its GPU code lies.
fn read(file: &File) -> object::Result<Contents> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache)?;
    let (endian, data, sections) = (elf.endian(), elf.data(), elf.elf_section_table());
    let mut needed = Vec::new();
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries.iter().filter(|entry| entry.tag32(endian) == Some(DT_NEEDED)) {
            let name = u32::try_from(entry.d_val(endian)).ok().and_then(|at| strings.get(at).ok());
            needed.extend(name.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
    }
    let fatbin = elf.section_by_name(".nv_fatbin").and_then(|section| section.file_range());
    Ok((needed, fatbin))
}

/// Loads the needed libraries and keeps them loaded: ONNX Runtime needs the same ones.
///
/// # Errors
/// All libraries that are missing, and where to get them.
fn missing(needed: &[String]) -> Result<(), String> {
    let ours = |name: &&str| name.starts_with("libcu") && !name.starts_with(DRIVER);
    let needed = needed.iter().map(String::as_str).filter(ours);
    let mut missing: Vec<&str> = needed.chain([LATER]).filter(|name| !loads(name)).collect();
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let named: Vec<String> = missing
        .iter()
        .map(|name| match other_version(name).filter(|other| loads(other)) {
            Some(other) => format!("{name} (there is {other}, of another version)"),
            None => (*name).to_owned(),
        })
        .collect();
    let packages: BTreeSet<&str> = missing
        .iter()
        .filter_map(|name| PACKAGES.iter().find(|(library, _)| name.starts_with(library)))
        .map(|(_, package)| *package)
        .collect();
    Err(format!(
        "ONNX Runtime needs {} for CUDA, and cannot find {}: install CUDA of that version and cuDNN 9, or put the folders of \
         the Python packages {} on LD_LIBRARY_PATH",
        if named.len() == 1 { "a library" } else { "libraries" },
        named.join(", "),
        packages.into_iter().collect::<Vec<_>>().join(", ")
    ))
}

fn loads(name: &str) -> bool {
    // SAFETY: runs the initialisers of NVIDIA's libraries, as ONNX Runtime is about to.
    match unsafe { libloading::Library::new(name) } {
        Ok(library) => {
            // Loaded for good: loading takes long.
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}

/// The name of the same library in the version before.
fn other_version(name: &str) -> Option<String> {
    let (stem, version) = name.rsplit_once(".so.")?;
    let version: u32 = version.parse().ok()?;
    Some(format!("{stem}.so.{}", version.checked_sub(1)?))
}

/// The GPUs that a section of fat binaries has code for. Each fat binary has a header of 16 bytes (magic, version, header size, size
/// of what follows), then entries. Each entry has a header of its own, in which bytes 0 to 2 are the kind (1 text, 2 machine code),
/// 4 to 8 the header's size, 8 to 16 the code's size, and 28 to 32 the compute capability.
fn code_of(file: &File, start: u64, bytes: u64) -> io::Result<BTreeSet<Code>> {
    const MAGIC: u32 = 0xBA55_ED50;
    let end = start + bytes;
    let mut code = BTreeSet::new();
    let mut at = start;
    while at + 16 <= end {
        let mut header = [0; 16];
        file.read_exact_at(&mut header, at)?;
        let number = |from: usize| u32::from_le_bytes(header[from..from + 4].try_into().unwrap_or_default());
        if number(0) != MAGIC {
            // Padding between two fat binaries.
            at += 8;
            continue;
        }
        let content = u64::from(number(8)) | u64::from(number(12)) << 32;
        let header_bytes = u64::from(number(4) >> 16).max(16);
        let content_end = at.saturating_add(header_bytes).saturating_add(content).min(end);
        let mut entry_at = at + header_bytes;
        while entry_at + 32 <= content_end {
            let mut entry = [0; 32];
            file.read_exact_at(&mut entry, entry_at)?;
            let number =
                |from: usize| u32::from_le_bytes(entry[from..from + 4].try_into().unwrap_or_default());
            match number(0) & 0xFFFF {
                1 => code.insert(Code::Text(number(28))),
                2 => code.insert(Code::Machine(number(28))),
                _ => break,
            };
            let code_bytes = u64::from(number(8)) | u64::from(number(12)) << 32;
            entry_at = entry_at.saturating_add(u64::from(number(4)).max(32)).saturating_add(code_bytes);
        }
        at = content_end.max(at + 16);
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_library_that_is_missing_is_named_with_where_to_get_it() {
        let names = ["libcudart.so.99", "libcublas.so.99", "libc.so.6", "libcuda.so.1"].map(str::to_owned);
        let why = missing(&names).unwrap_err();
        for part in ["libcudart.so.99", "libcublas.so.99", "nvidia-cuda-runtime", "nvidia-cublas"] {
            assert!(why.contains(part), "{why}");
        }
        assert!(!why.contains("libc.so.6") && !why.contains("libcuda.so"), "{why}");
        assert_eq!(other_version("libcudart.so.13").as_deref(), Some("libcudart.so.12"));
    }

    #[test]
    fn what_a_library_needs_is_read_from_the_file() {
        let (needed, fatbin) = read(&File::open(std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
        assert_eq!(fatbin, None);
    }

    /// A fat binary with an entry of each kind and capability.
    fn fat(entries: &[(u16, u32)]) -> Vec<u8> {
        let mut content = Vec::new();
        for (kind, capability) in entries {
            let mut entry = [0_u8; 64];
            entry[..2].copy_from_slice(&kind.to_le_bytes());
            entry[4] = 64;
            entry[8] = 24;
            entry[28..32].copy_from_slice(&capability.to_le_bytes());
            content.extend_from_slice(&entry);
            content.extend_from_slice(&[7; 24]);
        }
        let mut fat = 0xBA55_ED50_u32.to_le_bytes().to_vec();
        fat.extend_from_slice(&[1, 0, 16, 0]);
        fat.extend_from_slice(&(content.len() as u64).to_le_bytes());
        fat.extend_from_slice(&content);
        fat
    }

    #[test]
    fn a_gpu_that_there_is_no_code_for_is_refused_with_those_that_there_is() {
        let mut file = tempfile::tempfile().unwrap();
        let mut bytes = vec![0; 24];
        bytes.extend(fat(&[(2, 75), (2, 80)]));
        bytes.extend([0; 8]);
        bytes.extend(fat(&[(2, 90)]));
        file.write_all(&bytes).unwrap();
        let code = code_of(&file, 24, bytes.len() as u64 - 24).unwrap();
        assert_eq!(code, BTreeSet::from([75, 80, 90].map(Code::Machine)));
        let mut provider = CudaProvider { path: "p.so".into(), cuda: Some(13), code };
        let check = |provider: &CudaProvider, capability| provider.check(Version::new(13, 0), capability);
        for capability in [(7, 5), (8, 0), (8, 9), (9, 0)] {
            assert_eq!(check(&provider, capability), Ok(()), "{capability:?}");
        }
        assert_eq!(
            check(&provider, (10, 0)).unwrap_err(),
            "p.so has no code for compute capability 10.0, only for 7.5, 8.0, 9.0: take a build of ONNX Runtime that has"
        );
        assert!(check(&provider, (7, 0)).is_err());
        let why = provider.check(Version::new(12, 9), (8, 0)).unwrap_err();
        assert!(why.starts_with("p.so is made with CUDA 13, and the driver knows 12.9 only"), "{why}");
        // Text, which drivers compile, runs on all later GPUs.
        provider.code.insert(Code::Text(90));
        assert_eq!(check(&provider, (10, 0)), Ok(()));
    }
}
