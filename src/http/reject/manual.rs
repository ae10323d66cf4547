//! What there is to say about each kind of error, and the manual that is made of it: `docs/errors.md`, and the page at
//! `/docs/errors` that `type` leads to. The examples are made by the code that makes the errors.

use super::{
    BAD_REQUEST, CANCELLED, DRAINING, FORBIDDEN, FULL, IMAGE_BODIES, INPUT_REFUSED, INTERNAL, KINDS, Kind,
    LATE, LOAD_FAILED, LOAD_WAITS, MEDIA, METHOD, MODEL_NOT_READY, NO_DEVICE, NO_STORAGE, NOT_ACCEPTABLE,
    NOT_AN_IMAGE, NOT_FOUND, NOT_LIVE, NOT_OFFERED, NOT_READY, PROBLEM_JSON, Problem, SLOW_BODY, TOO_LARGE,
    UNAVAILABLE, UNKNOWN_MODEL, URI_TOO_LONG,
};
use crate::{
    error::{InferError, seconds_up},
    image::DecodeError,
};
use http::StatusCode;
use std::{fmt::Write, time::Duration};

/// The id in the examples.
const ID: &str = "0199a1c2-7d3e-7b1a-9c55-0f6b8e2d4a10";

/// What there is to say about a kind.
struct Entry {
    /// What it means.
    meaning: &'static str,
    /// What its reader should do.
    remedy: &'static str,
    /// One that is like those that happen; none where nobody is there to read it.
    example: Option<Problem>,
}

fn entry(meaning: &'static str, remedy: &'static str, example: impl Into<Problem>) -> Entry {
    Entry { meaning, remedy, example: Some(example.into()) }
}

impl From<InferError> for Problem {
    fn from(error: InferError) -> Problem {
        Problem::from(&error)
    }
}

/// The whole table. A kind without an entry does not compile into a manual: the test of it panics.
fn explain(kind: Kind) -> Entry {
    match kind {
        BAD_REQUEST => entry(
            "JSON, tensor names, shapes, types, parameters, multipart or headers are not what they must be. `detail` says what was \
             expected and what came.",
            "Correct the request. If it is sent again unchanged, it gets the same answer.",
            InferError::BadRequest("header timeout is 0; it is in milliseconds, at least 1".into()),
        ),
        NOT_AN_IMAGE => entry(
            "`detail` says one of these: which formats were tried and how the body begins; what the body is, if that is known (HEIC, \
             AVIF, PDF, an image in base64, …); or what is wrong within the file.",
            "Check that the file opens elsewhere and was sent whole (`curl -T FILE` or `--data-binary @FILE`; `-d` changes files). A \
             body that begins with `<!D` or `{\"` is HTML or JSON: something else was sent in place of the file.",
            InferError::from(DecodeError::Unknown { first: b"<!DOCTYPE ht".to_vec() }),
        ),
        INPUT_REFUSED => entry(
            "The request was well formed, but the model failed on this input, and not on others. `detail` has the engine's reason.",
            "Compare the input with what `GET /v2/models/{model}` says the model takes. If they agree, the model itself has a limit that \
             its metadata does not show: ask whoever made it.",
            InferError::Input("Reshape: the input tensor cannot be reshaped to the requested shape".into()),
        ),
        MODEL_NOT_READY => entry(
            "This is the answer of `GET /v2/models/{model}/ready` for a known model that failed to load, is being loaded, or has devices \
             that are away and not expected back, and for every model once the server is being stopped. (400 is what Triton answers there. \
             A request for the model itself gets `model-unavailable`.)",
            "Ask again later. If this lasts, `detail` and `POST /v2/repository/index` have the reason, and the log has more.",
            Problem::model_not_ready("digits", "it is being loaded"),
        ),
        LOAD_FAILED => entry(
            "The model could not be loaded. What served before goes on serving, and the index lists the reason with it.",
            "Correct what `detail` names and load the model again. `ocelli check` finds the same mistakes without a server.",
            InferError::LoadFailed {
                name: "digits".into(),
                reason: "it is not an ONNX file, or a damaged one (at byte 2)".into(),
                for_now: false,
            },
        ),
        FORBIDDEN => entry(
            "Loading and unloading models needs `repository_mode = \"explicit\"`. Only callers that show \
             [`admin_token`](options.md#admin_token) may do that, or drain a device. If there is none, only callers by a loopback address \
             (127.0.0.1, ::1) may that come by no proxy (`Forwarded`, `X-Forwarded-For`, `Via` and the like).\n\nA browser may ask for \
             this only from [the server's own page](page.md#who-may-use-it). Without the token, it may do so only if that page was opened \
             by an address or as `localhost`.",
            "Send `Authorization: Bearer TOKEN`, call from the server's machine by 127.0.0.1 or ::1, or ask the operator to allow it.",
            InferError::Forbidden("the request comes from a page of another server (header origin)".into()),
        ),
        NOT_FOUND => entry(
            "The API has no such path, or the path names a device or a region of shared memory that is not there.",
            "`/openapi.yaml` lists all paths, `GET /v2/devices` all devices. Behind a proxy, check whether it adds or removes a part of \
             the path.",
            Problem::not_found("/predict/digits"),
        ),
        UNKNOWN_MODEL => entry(
            "No model or version has this name. `detail` has the nearest names.",
            "`GET /v2/models` lists what was to be loaded, `POST /v2/repository/index` also what else the folder has.",
            InferError::UnknownModel { name: "digit".into(), nearest: vec!["digits".into()] },
        ),
        METHOD => entry(
            "The path exists, but does not take this method.",
            "The header `Allow` lists the methods that it takes.",
            Problem::method_not_allowed("DELETE"),
        ),
        NOT_ACCEPTABLE => entry(
            "The header `Accept` asks for a picture that cannot be given (`image/png` for several images) and for no other form, or, of a \
             fitter, for none that it writes. In all other cases an answer without an accepted form is JSON.",
            "Accept one of the forms that `detail` lists.",
            InferError::NotAcceptable {
                got: "image/png for several images".into(),
                accepted: "image/tiff, application/json",
            },
        ),
        SLOW_BODY => entry(
            "The whole body has a deadline (`body_timeout_ms`). After a grace period, it must also keep a minimum rate \
             (`body_rate_bytes_min`). A body of known length must also come fast enough that all of it is there in time. A stack of \
             camera frames has no deadline, but may be silent for `body_timeout_ms` at a time at most. Of one that was silent for longer, \
             `detail` says: `… and then none for 120000 ms, the longest that it may pause (body_timeout_ms)`. While as many requests are \
             in flight as there may be (`requests_in_flight_max`), there is no grace: a new request takes the place of the one whose \
             body has been below the minimum rate for longest, if that is a quarter of a second or more.",
            "Send it again over a better connection, or send less at once. A camera that pauses for longer needs a larger \
             `body_timeout_ms`, or a request of its own after each pause.",
            InferError::SlowBody(
                "1460 bytes of the body came in 9002 ms; after 5000 ms it must come at 1024 bytes/s or more"
                    .into(),
            ),
        ),
        TOO_LARGE => entry(
            "`detail` has the value, the limit, and the option that raises the limit, if one does. A body whose announced length is too \
             large is refused before any of it is read. Compressed data may decompress to 64 MiB plus 1032 times as many bytes as are \
             sent. Forms and JSON are held as a whole; a stack of camera frames as the body itself is not. Where the model takes more \
             memory for one item than it may on the CPU (`compute_bytes_max`) with nothing beside it, `detail` says: `cpu: too little \
             memory for a batch of 1: …`. (On a GPU that is 503, since other processes may have its memory.)",
            "Send fewer or smaller images, or a stack as the body itself (`curl -T FILE`), or ask the operator to raise the limit. If the \
             data compresses that well, send it uncompressed, or compressed with deflate.",
            InferError::TooLarge {
                what: "the body in bytes".into(),
                got: 300_000_000,
                limit: 256 << 20,
                option: "body_bytes_max",
            },
        ),
        URI_TOO_LONG => entry(
            "The parameters of this service are short, so something has put data into the address.",
            "Send data in the body.",
            Problem::uri_too_long(9_012, 8192),
        ),
        MEDIA => entry(
            "`detail` lists the content types that the route takes, or the content encodings. The encodings are also in the header \
             `Accept-Encoding`. A body that begins as an image does is taken whatever its type, except for a stack.",
            "Set `Content-Type` to what the body is, or leave it out: images are recognised by their first bytes.",
            InferError::UnsupportedMedia {
                got: "text/html".into(),
                accepted: IMAGE_BODIES,
            },
        ),
        FULL => entry(
            "The requests in flight, their bytes, or a model's queue have reached their limit; or 32 replies about all models or devices \
             are under way, 256 about one model, or 1000 loads and unloads wait. Nothing of the request was run, as a rule. Where `detail` \
             names the bytes in flight or `stack_spill_total_bytes_max`, some may have been: its outputs, or the rest of a stack, found no \
             room.",
            "Wait for `Retry-After` and send the request again, or try another replica. If this lasts, the service needs more replicas: \
             `ocelli_refused_total`, `ocelli_queue_items` and their `_max` show which limit it is.",
            InferError::Full {
                what: "the queue of items",
                limit: 4096,
                retry_after: Duration::from_millis(1400),
            },
        ),
        CANCELLED => Entry {
            meaning: "The client closed the connection before its answer. Work for it that had not begun is not done.",
            remedy: "Nothing. This is in logs and metrics only, since nobody is there to read it. If there are many, clients give up \
                     early: give them more time, or the server more devices. Each has a log line with the time after which its client \
                     went away. It counts with code 499 in `ocelli_http_requests_total`, and with that time in \
                     `ocelli_http_request_duration_seconds`.",
            example: None,
        },
        INTERNAL => entry(
            "This is a fault of the server itself. Other requests go on.",
            "The log has the cause under the request id. Please report it.",
            InferError::Internal(
                "a handler failed unexpectedly; the log has the cause under the request id".into(),
            ),
        ),
        NOT_OFFERED => entry(
            "Other servers of the same protocols have something here that this one does not, such as shared memory of GPUs, trace \
             settings or explanations. Or the body is compressed for transfer (`Transfer-Encoding: gzip, chunked`).",
            "`detail` says what there is instead. Sending the request again gives the same answer.",
            InferError::NotOffered(
                "traces are set up with the server's options, and not while it runs".into(),
            ),
        ),
        UNAVAILABLE => entry(
            "The model is known, but failed to load or is being loaded; `detail` has the reason.",
            "Wait for `Retry-After`, or try another replica. If this lasts, `GET /v2/models` and the log say what is wrong.",
            InferError::ModelUnavailable {
                name: "digits".into(),
                reason: "digits/model.onnx is not there".into(),
                loading: false,
            },
        ),
        LOAD_WAITS => entry(
            "A load found no device for the model: those that may run it are away, drained, or have no room for it now. If no version of \
             it served before, it waits, and is loaded once one of them can take it; otherwise what served goes on serving.",
            "Wait for a device (`ocelli devices --url URL`), or free memory of one. A model that waits needs no other load; \
             `POST /v2/repository/index` says which does.",
            InferError::LoadFailed {
                name: "digits".into(),
                reason: "none of its devices is there now: cpu is fenced (drained by request); it is loaded when one of them is back"
                    .into(),
                for_now: true,
            },
        ),
        DRAINING => entry(
            "The server is being stopped or replaced, and `drain_timeout_ms` is over or a second signal came. All requests without an \
             answer get this one, whether they are still being read, decoded, or waiting for a device. The answer to a stack ends with it, \
             after what was found so far. Who does not take it within half a second, or after a second signal at once, is cut off.\n\n\
             From the first signal on, it is the answer to `GET /v1/models/{model}`, loads and unloads. Streams of gRPC \
             (`ModelStreamInfer`) end with it once `drain_delay_ms` is over.",
            "Send it again: a load balancer will choose another replica.",
            InferError::Draining,
        ),
        NO_DEVICE => entry(
            "Every device that could run the model is lost, fenced, drained or busy for others, and not expected back before the \
             deadline. Or the request failed on two devices, or twice on the only one. `detail` says which and why.",
            "Wait for `Retry-After`, or try another replica. `ocelli devices --url URL` shows each device with its state and reason.",
            InferError::Unserved {
                name: "digits".into(),
                reason: "GPU-5d0c is fenced: a canary forward pass failed".into(),
                retry_after: Duration::from_secs(12),
            },
        ),
        NOT_READY => entry(
            "This is the answer of readiness probes unless [a request sent now can be answered](api.md#health). The body also has \
             `\"ready\": false`, which KServe's clients read.",
            "Nothing at first: Kubernetes and load balancers keep requests away. If this lasts, `detail` has the reason.",
            Problem::not_ready("it is draining"),
        ),
        NOT_LIVE => entry(
            "This is the answer of liveness probes if only a restart helps: the data path stands still, or all devices are GPUs that \
             this process cannot use again after faults. The body also has `\"live\": false`, which KServe's clients read.",
            "Restart the server. Kubernetes does so by itself. With `isolation = \"process\"`, faults of GPUs never lead to this.",
            Problem::not_live("the data path has stood still for 31 s"),
        ),
        LATE => entry(
            "A request that is late, or would be, is not run. `detail` says how late. The deadline comes from one of these:\n\n- the \
             header `timeout`, in milliseconds from the request's head on: it ends the reading of the body, too; likewise gRPC's own \
             deadline\n- the parameter `timeout`, in microseconds from when the body is there\n- the model's default, from when the body \
             is there\n- `wait_ms_max` of its `[queue]`, which bounds the wait alone",
            "Allow more time, or send less at once. If this lasts, the service needs more devices.",
            InferError::Late("no answer within the deadline of 250 ms".into()),
        ),
        NO_STORAGE => entry(
            "A stack that is not stored in order needs more than `stack_memory_bytes_max`, and the rest could not be kept in \
             `stack_spill_folder`. The disk is full, read-only or gone, or a limit on the sizes of files is reached. The log has the \
             folder and the system's message.",
            "Ask the operator for room there (or for more `stack_memory_bytes_max`), try another replica, or write the stack in order: \
             pages behind their directory, one after the other.",
            InferError::NoStorage(
                "cannot keep 268435456 bytes of the stack in a temporary file: no storage space; the server's option \
                 stack_spill_folder names the folder, and its log has more"
                    .into(),
            ),
        ),
        other => unreachable!("nothing is said about {}: add it here", other.slug),
    }
}

/// A reply as it goes out: what clients look at of its head, and its body.
fn shown(problem: &Problem) -> String {
    let status = StatusCode::from_u16(problem.kind.status);
    let reason = status.ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
    let mut text = format!("HTTP/1.1 {} {reason}\ncontent-type: {PROBLEM_JSON}\n", problem.kind.status);
    if let Some(retry_after) = problem.retry_after {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "retry-after: {}", seconds_up(retry_after));
    }
    format!("{text}\n{:#}", problem.to_json(Some(ID)))
}

/// The manual of errors.
pub fn errors_md() -> String {
    let whole = explain(FULL).example.map_or_else(String::new, |example| shown(&example));
    let mut out = format!(
        "# Errors\n\n\
         <!-- Made from src/http/reject/manual.rs by `OCELLI_BLESS=1 cargo test --lib reject`. -->\n\n\
         Every error, on every route, has a body like this one. Its content type is `{PROBLEM_JSON}` (RFC 9457). Below `/v1`\n\
         and `/v2` it is `application/json`, as in the servers and clients of these protocols.\n\
         A server with its page on (`page`) shows this manual at `/docs/errors`, where `type` leads. Behind a proxy that passes on\n\
         `base_path` alone, it is below that.\n\n\
         ```http\n{whole}\n```\n\n\
         - `error` repeats `detail`: it is the member that the clients of Triton and KServe read.\n\
         - `type` names the kind, one of those below, and stays the same between releases; `detail` is for people.\n\
         - Where TorchServe's clients ask (`/predictions`, `/ping`, and its paths that are not built: `/models`, `/explanations`), a whole\n  \
         reply also has `code`, which repeats `status`, and `message`, which repeats `detail`. `type` is ours there, too.\n\
         - `request_id` is also in the header `x-request-id` and in the log.\n\
         - Each 429 and 503 has `Retry-After` in seconds. Prediction changes nothing on the server, so every request may be\n  \
         sent again.\n\n\
         In a reply to several images, the entry of an image that failed is this body without `request_id`. The other images are answered.\n\
         Over gRPC, the same words come with a code in place of the status.\n\n\
         A request that is not HTTP is refused before any of this, with 400, 414 or 431 and an empty body, and the connection ends. That is\n\
         broken framing, a head beyond 256 KiB (32 KiB over HTTP/2), over 100 headers, or an address beyond 64 KiB.\n\n\
         | kind | status | title |\n|---|---|---|\n"
    );
    for Kind { slug, status, title, .. } in KINDS {
        let _ = writeln!(out, "| [`{slug}`](#{slug}) | {status} | {title} |");
    }
    for kind in KINDS {
        let Entry { meaning, remedy, example } = explain(kind);
        let Kind { slug, status, title, .. } = kind;
        let _ =
            write!(out, "\n## {slug}\n\n**{status}**: {title}.\n\n{meaning}\n\n**What to do:** {remedy}\n");
        if let Some(example) = example {
            let _ = write!(out, "\n`detail` such as:\n\n```text\n{}\n```\n", example.detail);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blessed;

    #[test]
    fn the_manual_of_errors_is_what_the_table_says() {
        blessed::check("docs/errors.md", &errors_md(), "reject");
    }

    #[test]
    fn every_kind_has_an_example_of_its_own_kind_but_the_one_that_nobody_reads() {
        for kind in KINDS {
            match explain(kind).example {
                Some(example) => assert_eq!(example.kind, kind),
                None => assert_eq!(kind, CANCELLED),
            }
        }
    }
}
