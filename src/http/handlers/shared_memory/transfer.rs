//! Tensors out of regions, before a request is run, and into them, before it is answered.

use super::{Region, SharedMemory, bad};
use crate::{
    engine::{Tensor, staging::Slot},
    error::InferError,
    http::{
        Front,
        accept::Peer,
        admission::charged,
        call::Call,
        control::{self, origin},
        wire::{
            binary,
            reply::Output,
            request::{InferRequest, Input},
            shared_memory::{Place, REGION},
        },
    },
    models::Model,
};
use axum::http::{Extensions, HeaderMap, Method, Uri};
use std::{
    collections::BTreeMap,
    ops::DerefMut,
    sync::{Arc, atomic::Ordering},
};

/// Up to so many bytes are copied on the request's thread, as a connection's would be: about 0.1 ms. More are copied on the pool.
const INLINE_BYTES_MAX: u64 = 1 << 20;

/// A buffer of up to so many bytes is kept for the next request: getting one anew takes longer than filling it. Larger ones would keep
/// memory from others.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Whether copying so many bytes would keep a thread too long from its other requests.
pub(crate) fn is_long(bytes: u64) -> bool {
    bytes > INLINE_BYTES_MAX
}

/// Whether the client of an inference may use regions; `None` where nobody may.
pub(crate) struct Caller(Option<Result<(), InferError>>);

impl Caller {
    /// From what came with a request. A page of another server must not have a browser use regions, just as it must not register them.
    pub(crate) fn of(front: &Front, extensions: &Extensions, headers: &HeaderMap, uri: &Uri) -> Caller {
        Caller(front.shared_memory.is_on().then(|| {
            control::known(front, extensions.get::<Peer>(), headers)?;
            let token = front.admin_token.is_some();
            origin::own_page(&Method::POST, uri, headers, token)
                .map_err(|why| InferError::Forbidden(why.to_owned()))
        }))
    }
}

/// The regions that a request names, as they were when it came. A region registered later under the same name is not used.
pub(crate) type Named = BTreeMap<String, Arc<Region>>;

/// Reads the inputs that lie in regions, and checks the places where outputs are to be put, for [`deliver`].
///
/// # Errors
/// 400 for regions that are not registered and places that are not in them, 403 for a caller who may not use regions, 413 and
/// 429 for more bytes than a body may have or there is room for, and what [`binary::checked`] says of the data.
pub(crate) async fn fetch(
    front: &Arc<Front>,
    model: &Arc<Model>,
    caller: &Caller,
    call: &Call,
    mut request: InferRequest,
) -> Result<(InferRequest, Named), InferError> {
    let named = named(front, caller, &request)?;
    if named.is_empty() {
        return Ok((request, named));
    }
    let bytes = charge(front, call, &request)?;
    let (front_too, model) = (Arc::clone(front), Arc::clone(model));
    let read = move || {
        for input in &mut request.inputs {
            bring(&front_too.shared_memory, &named, &model, input)?;
        }
        Ok((request, named))
    };
    if is_long(bytes) {
        front.decode.run(call.step(), charged(call.permit.as_ref(), read)).await?
    } else {
        read()
    }
}

fn named(front: &Front, caller: &Caller, request: &InferRequest) -> Result<Named, InferError> {
    let mut named = Named::new();
    let inputs = request.inputs.iter().filter_map(|input| input.place.as_ref());
    let outputs = request.outputs.iter().filter_map(|output| output.place.as_ref());
    let mut places = inputs.chain(outputs).peekable();
    if places.peek().is_none() {
        return Ok(named);
    }
    match &caller.0 {
        Some(may) => may.clone()?,
        None => {
            return Err(bad(format!(
                "parameter {REGION:?} is not supported: send the data with the request, or set shared_memory_regions_max"
            )));
        }
    }
    for place in places {
        let region = match named.get(&place.region) {
            Some(region) => region,
            None => named.entry(place.region.clone()).or_insert(
                front.shared_memory.find(&place.region).ok_or_else(|| {
                    bad(format!("there is no shared memory region {:?}; register it first", place.region))
                })?,
            ),
        };
        region.at(place)?;
    }
    Ok(named)
}

/// Charges the bytes of all inputs that lie in regions, and returns their number.
fn charge(front: &Front, call: &Call, request: &InferRequest) -> Result<u64, InferError> {
    let inputs = request.inputs.iter().filter_map(|input| input.place.as_ref());
    let bytes = inputs.fold(0, |sum: u64, place| sum.saturating_add(place.bytes));
    let (limit, option) = (front.limits.body.bytes_max, front.limits.body.option);
    if bytes > limit {
        let what = "the data in shared memory in bytes";
        return Err(InferError::TooLarge { what: what.into(), got: bytes, limit, option });
    }
    if let Some(permit) = &call.permit {
        permit.cover(permit.bytes() + bytes)?;
    }
    Ok(bytes)
}

/// The region of a place, as [`fetch`] found it.
fn region<'n>(named: &'n Named, place: &Place) -> Result<&'n Region, InferError> {
    let found = named.get(&place.region);
    found
        .map(|region| &**region)
        .ok_or_else(|| InferError::Internal(format!("region {:?} was not looked up", place.region)))
}

/// Copies an input to where the batch will be read from.
fn bring(shared: &SharedMemory, named: &Named, model: &Model, input: &mut Input) -> Result<(), InferError> {
    let Some(place) = input.place.take() else { return Ok(()) };
    let region = region(named, &place)?;
    let bytes =
        usize::try_from(place.bytes).map_err(|_| bad("the data does not fit in memory".to_owned()))?;
    input.tensor.data = match slot(model, &input.tensor, bytes) {
        Some(slot) => filled(slot, |slot| region.read(&place, slot))?.freeze(),
        None if bytes <= KEPT_BYTES_MAX => {
            filled(shared.blocks.lend(bytes), |block| region.read(&place, block))?.freeze()
        }
        None => filled(vec![0; bytes], |own| region.read(&place, own))?.into(),
    };
    shared.read_bytes.fetch_add(place.bytes, Ordering::Relaxed);
    input.tensor = binary::checked(&input.name, input.tensor.clone())?;
    Ok(())
}

fn filled<M: DerefMut<Target = [u8]>>(
    mut memory: M,
    fill: impl FnOnce(&mut [u8]) -> Result<(), InferError>,
) -> Result<M, InferError> {
    fill(&mut memory).map(|()| memory)
}

/// The slot for the next item of the batch that is being put together, if the tensor is such an item.
fn slot(model: &Model, tensor: &Tensor, bytes: usize) -> Option<Slot> {
    let staging = model.image.as_ref()?.staging(tensor.datatype)?;
    (model.is_pixels(tensor) && staging.slot_bytes() == bytes).then(|| staging.slot())
}

/// Puts outputs where they are asked for.
///
/// # Errors
/// 400 for one that is larger than its place, and where the memory is not there any more.
pub(crate) fn deliver(front: &Front, named: &Named, outputs: &[Output]) -> Result<(), InferError> {
    for Output { name, tensor, place, .. } in outputs {
        let Some(place) = place else { continue };
        let bytes = tensor.data.len() as u64;
        if bytes > place.bytes {
            return Err(bad(format!(
                "output {name:?} has {bytes} bytes, more than the {} of its place in shared memory region {:?}",
                place.bytes, place.region
            )));
        }
        region(named, place)?.write(place, &tensor.data)?;
        front.shared_memory.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    Ok(())
}
