//! Triton's system shared memory extension: a client on this machine passes tensors in both directions through memory that it has
//! registered, instead of through the connection.
//!
//! Off unless `shared_memory_regions_max` says how many regions there may be. A client that names a region has the server read and write a
//! file under `/dev/shm` with the server's own rights. So only clients that may control the server may register regions or use them: those
//! at a loopback address or, with `admin_token`, those that know it.
//!
//! - `region`: one region, and why none is mapped.
//! - `transfer`: tensors out of regions and into them.

mod region;
mod transfer;

pub(crate) use region::Region;
pub(crate) use transfer::{Caller, Named, deliver, fetch, is_long};

use super::repository;
use crate::{
    engine::staging::{Blocks, Memory},
    error::{InferError, bad},
    http::{
        Front,
        accept::Peer,
        control,
        reject::Problem,
        target::segment,
        wire::shared_memory::{self as wire, Registration},
    },
};
use axum::{
    Json,
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, request::Parts},
    response::{IntoResponse, Response},
};
use parking_lot::RwLock;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// What was registered, by its name.
type Regions = BTreeMap<String, Arc<Region>>;

/// The regions that callers have registered.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    regions_max: usize,
    regions: RwLock<Regions>,
    /// Memory that inputs are read into where the batch has no slot for them.
    blocks: Blocks,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl SharedMemory {
    /// No regions yet, and never more than `regions_max`; with 0, memory is not shared at all.
    pub(in crate::http) fn new(regions_max: usize) -> SharedMemory {
        SharedMemory {
            regions_max,
            regions: RwLock::default(),
            blocks: Blocks::new(Memory::Plain),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        }
    }

    /// Whether regions may be registered at all.
    pub(crate) fn is_on(&self) -> bool {
        self.regions_max > 0
    }

    /// Regions now.
    pub(super) fn count(&self) -> usize {
        self.regions.read().len()
    }

    /// Bytes read from regions and written to them so far.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [&self.read_bytes, &self.written_bytes].map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Registers a region.
    ///
    /// # Errors
    /// 400 for what [`Region`] refuses, a name that is taken, and one region too many.
    pub(crate) fn register(&self, name: &str, registration: Registration) -> Result<(), InferError> {
        self.register_in(Path::new(region::FOLDER), name, registration)
    }

    fn register_in(&self, folder: &Path, name: &str, registration: Registration) -> Result<(), InferError> {
        let mut regions = self.regions.write();
        if regions.contains_key(name) {
            return Err(bad(format!(
                "shared memory region {name:?} is registered already; unregister it first"
            )));
        }
        if regions.len() >= self.regions_max {
            return Err(bad(format!(
                "there are {} shared memory regions, as many as there may be; unregister some, or raise \
                 shared_memory_regions_max",
                regions.len()
            )));
        }
        let region = Region::open(folder, name, registration)?;
        tracing::info!(
            region = name,
            key = region.registration.key,
            bytes = region.registration.byte_size,
            "a caller shares memory"
        );
        regions.insert(name.to_owned(), Arc::new(region));
        Ok(())
    }

    /// Forgets a region, or all with an empty name. A region that is not there is no error: the client wants it gone.
    pub(crate) fn unregister(&self, name: &str) {
        let mut regions = self.regions.write();
        if name.is_empty() {
            regions.clear();
        } else {
            regions.remove(name);
        }
        if regions.is_empty() {
            self.blocks.clear();
        }
    }

    /// One region.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Region>> {
        self.regions.read().get(name).cloned()
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Region>> {
        self.regions.read().values().cloned().collect()
    }
}

/// Whether a client may look at regions and forget them. Where memory is not shared there are none, so nothing is kept from anyone: clients
/// ask, and forget all, before they begin, whatever they go on to do.
///
/// # Errors
/// 403.
pub(crate) fn may_look(front: &Front, peer: Option<&Peer>, headers: &HeaderMap) -> Result<(), InferError> {
    if front.shared_memory.is_on() { allowed(front, peer, headers) } else { Ok(()) }
}

/// Whether a caller may register regions and use them.
///
/// # Errors
/// 403, also where memory is not shared at all.
pub(crate) fn allowed(front: &Front, peer: Option<&Peer>, headers: &HeaderMap) -> Result<(), InferError> {
    if !front.shared_memory.is_on() {
        return Err(InferError::Forbidden(
            "shared memory is off: send tensors in the request, or have the operator set shared_memory_regions_max"
                .to_owned(),
        ));
    }
    control::known(front, peer, headers)
}

/// The region that a path names; empty where it means all.
pub(in crate::http) struct Name(String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = InferError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Name, InferError> {
        let name = segment(parts, state, "region").await?;
        name.as_deref().map_or(Ok(()), wire::check_name)?;
        Ok(Name(name.unwrap_or_default()))
    }
}

/// `GET /v2/systemsharedmemory[/region/{region}]/status`
pub(in crate::http) async fn status(
    State(front): State<Arc<Front>>,
    Name(name): Name,
    request: Request,
) -> Response {
    if let Err(error) = may_look(&front, request.extensions().get(), request.headers()) {
        return error.into_response();
    }
    let there = match front.shared_memory.find(&name) {
        _ if name.is_empty() => front.shared_memory.all(),
        Some(region) => vec![region],
        None => return Problem::unknown_region(&name).into_response(),
    };
    let entry = |region: Arc<Region>| {
        let Registration { key, offset, byte_size } = &region.registration;
        json!({ "name": region.name, "key": key, "offset": offset, "byte_size": byte_size })
    };
    Json(there.into_iter().map(entry).collect::<Value>()).into_response()
}

/// `POST /v2/systemsharedmemory/region/{region}/register`
pub(in crate::http) async fn register(
    State(front): State<Arc<Front>>,
    Name(name): Name,
    request: Request,
) -> Result<(), InferError> {
    allowed(&front, request.extensions().get(), request.headers())?;
    let registration = wire::registration(&repository::read(&front, request).await?)?;
    front.shared_memory.register(&name, registration)
}

/// `POST /v2/systemsharedmemory[/region/{region}]/unregister`
pub(in crate::http) async fn unregister(
    State(front): State<Arc<Front>>,
    Name(name): Name,
    request: Request,
) -> Result<(), InferError> {
    may_look(&front, request.extensions().get(), request.headers())?;
    front.shared_memory.unregister(&name);
    Ok(())
}

/// `GET /v2/cudasharedmemory[/region/{region}]/status`: GPU memory is never shared, so the list is empty for any name. Clients that share
/// memory ask before they begin.
pub(in crate::http) async fn cuda_status() -> Json<Value> {
    Json(json!([]))
}

/// `POST /v2/cudasharedmemory[/region/{region}]/unregister`: what is not there is no error. `perf_analyzer` begins and ends with it.
pub(in crate::http) async fn cuda_unregister() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_regions_bounded_and_what_is_forgotten_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m"), [0; 8]).unwrap();
        let shared = SharedMemory::new(2);
        let register = |name: &str| {
            let registration = Registration { key: "m".to_owned(), offset: 0, byte_size: 8 };
            shared.register_in(folder.path(), name, registration).map_err(|error| error.to_string())
        };
        assert_eq!(register("a"), Ok(()));
        assert!(register("a").unwrap_err().contains("registered already"));
        assert_eq!(register("b"), Ok(()));
        assert!(register("c").unwrap_err().contains("raise shared_memory_regions_max"));
        shared.unregister("nothing");
        assert_eq!(shared.count(), 2);
        shared.unregister("a");
        assert!(shared.find("a").is_none() && shared.find("b").is_some());
        assert_eq!(register("c"), Ok(()));
        let held = shared.find("c").unwrap();
        shared.unregister("");
        assert_eq!(shared.all().len(), 0);
        assert_eq!(held.name, "c", "a request that has one keeps it");
        assert!(register("").unwrap_err().contains("no name"));
    }
}
