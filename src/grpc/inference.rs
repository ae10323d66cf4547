//! One inference: as a call of its own, or as a message of a stream.

use super::{around::Arrived, codec, convert, status};
use crate::{
    error::InferError,
    http::{
        Front,
        admission::{Permit, charged, written},
        around::guard::panicked,
        call::Call,
        decode::Turns,
        handlers::{
            infer,
            shared_memory::{self, Caller},
        },
        observe::Uncounted,
        reject::{Problem, kind_of},
        target::Target,
        wire::reply::InferReply,
    },
    protocol::inference::*,
    telemetry::metrics::DropReason,
};
use axum::http::{HeaderMap, Uri};
use futures_util::FutureExt;
use prost::Message as _;
use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};
use tonic::{Extensions, Status, metadata::MetadataMap};

/// The target of a call; an empty version asks for the highest one that can be served.
pub(super) fn target(model: String, version: String) -> Target {
    Target::new(model, Some(version).filter(|version| !version.is_empty()))
}

/// What a call states beside its message.
pub(super) struct Head {
    pub(super) headers: HeaderMap,
    extensions: Extensions,
    pub(super) arrived: Instant,
    /// Of the whole call.
    pub(super) timeout: Option<Duration>,
    /// Whether a failed message ends the stream with a status, as the client requested.
    fails_by_status: bool,
    /// Of a stream: for the files in all its messages.
    turns: Option<Arc<Turns>>,
}

impl Head {
    pub(super) fn of(metadata: MetadataMap, extensions: &Extensions) -> Result<Head, InferError> {
        let headers = metadata.into_headers();
        let arrived = extensions.get::<Arrived>().map_or_else(Instant::now, |arrived| arrived.0);
        let fails_by_status = headers.get(ERROR_BY_STATUS).is_some_and(|value| value == "true");
        Ok(Head {
            timeout: timeout(&headers)?,
            headers,
            extensions: extensions.clone(),
            arrived,
            fails_by_status,
            turns: None,
        })
    }

    /// The same for a stream, whose messages share their turns at decoding.
    pub(super) fn of_stream(self, front: &Front) -> Head {
        Head { turns: Some(Arc::new(front.decode.turns())), ..self }
    }
}

/// Counts a request for a model by how it ends.
pub(super) async fn counted<T>(
    front: &Arc<Front>,
    model: &str,
    answer: impl Future<Output = Result<T, InferError>>,
) -> Result<T, InferError> {
    // Only names in the catalogue become labels.
    let counted = front.catalog.has(model).then(|| Uncounted::of(front, model));
    let ended = answer.await;
    if let Some(counted) = counted {
        counted.ended(ended.as_ref().err().map(kind_of));
    }
    ended
}

/// The deadline that gRPC clients send: up to eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, InferError> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let read = || {
        let (digits, unit) = value.to_str().ok()?.split_at_checked(value.len().checked_sub(1)?)?;
        let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8 && !digits.starts_with('+'))?;
        Some(match unit {
            "H" => Duration::from_secs(number * 3600),
            "M" => Duration::from_secs(number * 60),
            "S" => Duration::from_secs(number),
            "m" => Duration::from_millis(number),
            "u" => Duration::from_micros(number),
            "n" => Duration::from_nanos(number),
            _ => return None,
        })
    };
    read().map(Some).ok_or_else(|| {
        InferError::BadRequest(format!("grpc-timeout is {value:?}, expected digits and one of H M S m u n"))
    })
}

/// One inference: the reply, and its headers.
pub(super) async fn infer(
    front: &Arc<Front>,
    head: &Head,
    arrived: Instant,
    message: ModelInferRequest,
    permit: Option<Arc<Permit>>,
) -> Result<(ModelInferResponse, HeaderMap), InferError> {
    let target = target(message.model_name.clone(), message.model_version.clone());
    let answer = async {
        let model = target.find(front)?;
        let call = Call::of(&head.headers, &model, front.limits.timeout_max)?
            .traced(&head.extensions)
            .charged_to(permit.as_ref())
            .sharing_turns(head.turns.as_ref())
            .since(arrived)
            // The timeout is for the whole call.
            .no_later_than(head.timeout, head.arrived);
        let began = Instant::now();
        let (long, typed, of) = (convert::is_long(&message), convert::is_typed(&message), Arc::clone(&model));
        // A fitter accepts its inputs in several types, and checks them itself.
        let read = move || convert::request(message, if of.fit.is_some() { &[] } else { &of.takes });
        let request = if long {
            front.decode.run(call.step(), charged(permit.as_ref(), read)).await??
        } else {
            read()?
        };
        // Browsers do not speak gRPC, but one that did would state the origin of its page.
        let caller = Caller::of(front, &head.extensions, &head.headers, &Uri::default());
        let (request, named) = shared_memory::fetch(front, &model, &caller, &call, request).await?;
        let call = call.asked(&model, request.timeout()?, request.priority()?);
        call.stage("decode", || began.elapsed());
        let ran = infer::run(front, &model, &call, request, began).await?;
        let write = move |reply: InferReply, permit: Option<&Arc<Permit>>| {
            let reply = convert::reply(reply, typed)?;
            // The encoded bytes that are sent exist as well as the reply.
            let bytes = reply.encoded_len();
            written(permit, bytes as u64, || Ok(reply), |_| bytes)
        };
        let (reply, spent) = ran.written(front, &call, named, write).await?;
        let mut headers = HeaderMap::new();
        spent.tell(&mut headers);
        Ok((reply, headers))
    };
    counted(front, &target.model, answer).await
}

/// The permit of one message of a stream. It takes over all the memory that was charged when the message was decoded. The stream itself
/// then holds nothing, however long it goes on.
pub(super) fn permit_of(
    call: Option<&Arc<Permit>>,
    message: &ModelInferRequest,
) -> Result<Option<Arc<Permit>>, InferError> {
    let Some(call) = call else { return Ok(None) };
    let permit = call.split_off()?;
    permit.trim(codec::held(message));
    Ok(Some(Arc::new(permit)))
}

/// The key of a stream's metadata with which Triton's clients ask for a status when a message fails, which ends the stream.
const ERROR_BY_STATUS: &str = "triton_grpc_error";

/// Answers one message of a stream. A failure is reported in place of the answer and the stream goes on, unless the client wants it to end
/// with a status.
pub(super) async fn stream_answer(
    front: Arc<Front>,
    head: Arc<Head>,
    message: ModelInferRequest,
    permit: Result<Option<Arc<Permit>>, InferError>,
) -> Result<ModelStreamInferResponse, Status> {
    let arrived = Instant::now();
    let (model_name, id) = (message.model_name.clone(), message.id.clone());
    let answer = async {
        match permit {
            Ok(permit) => {
                let answer = infer(&front, &head, arrived, message, permit);
                front.before_the_end(DropReason::Request, answer).await?
            }
            Err(full) => Err(full),
        }
    };
    let failed = ModelInferResponse { model_name, id, ..ModelInferResponse::default() };
    in_its_place(answer, failed).await.or_else(|(error, failed)| {
        tracing::info!(error = failed.error_message, "a message of a stream failed");
        if head.fails_by_status { Err(status::of(&error)) } else { Ok(failed) }
    })
}

/// The answer to a message of a stream. If the message fails, even by a panic, `failed` with the reason takes its place.
///
/// # Errors
/// That replacement, and the error.
async fn in_its_place(
    answer: impl Future<Output = Result<(ModelInferResponse, HeaderMap), InferError>>,
    failed: ModelInferResponse,
) -> Result<ModelStreamInferResponse, (InferError, ModelStreamInferResponse)> {
    let caught = AssertUnwindSafe(answer).catch_unwind().await;
    let told = |reply, error_message| ModelStreamInferResponse { error_message, infer_response: Some(reply) };
    match caught.unwrap_or_else(|panic| Err(panicked(&panic))) {
        Ok((mut reply, _)) => {
            // Every request has one answer, so each answer is the last. Triton marks it whether or not the client asks.
            let last = infer_parameter::ParameterChoice::BoolParam(true);
            let last = InferParameter { parameter_choice: Some(last) };
            reply.parameters.insert("triton_final_response".to_owned(), last);
            Ok(told(reply, String::new()))
        }
        Err(error) => {
            let why = Problem::from(&error).detail;
            Err((error, told(failed, why)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[tokio::test]
    async fn a_message_of_a_stream_that_panics_is_told_in_its_place_and_says_nothing_of_it() {
        let failed = ModelInferResponse { id: "7".into(), ..ModelInferResponse::default() };
        let (_, answer) = in_its_place(async { panic!("secret") }, failed).await.unwrap_err();
        assert!(!answer.error_message.is_empty() && !answer.error_message.contains("secret"), "{answer:?}");
        let reply = answer.infer_response.expect("one for each");
        assert!(reply.id == "7" && reply.parameters.is_empty(), "{reply:?}");
    }

    #[test]
    fn a_deadline_has_digits_and_a_unit() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(value));
            timeout(&headers)
        };
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
        assert_eq!(of("2H"), Ok(Some(Duration::from_secs(7200))));
        assert_eq!(of("3M"), Ok(Some(Duration::from_secs(180))));
        assert_eq!(of("99999999S"), Ok(Some(Duration::from_secs(99_999_999))));
        assert_eq!(of("100m"), Ok(Some(Duration::from_millis(100))));
        assert_eq!(of("7u"), Ok(Some(Duration::from_micros(7))));
        assert_eq!(of("7n"), Ok(Some(Duration::from_nanos(7))));
        for value in ["", "m", "1", "1d", "-1m", "+1S", "999999999S", "1.5S"] {
            assert!(of(value).is_err(), "{value:?}");
        }
    }
}
