//! `ocelli health`: one plain HTTP/1.1 GET of `/v2/health/live` or `/v2/health/ready`, for containers that have no
//! other tool. Blocking, and bounded in time and bytes.

use super::target::Target;
use crate::words::causes;
use axum::{
    body::Body,
    http::{Request, header},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    thread,
    time::Duration,
};
use tokio::{net::TcpStream, runtime, sync::oneshot, time::timeout};

/// The time limit, from resolving the name to the last byte.
pub(super) const TIME_MAX: Duration = Duration::from_secs(3);

/// A longer answer does not come from these routes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Characters shown of a reply's reason, at most.
const REASON_MAX: usize = 300;

/// Status code and body of `GET /v2/health/{probe}`; or why there is no answer.
pub(super) fn ask(target: &Target, probe: &str, time_max: Duration) -> Result<(u16, String), String> {
    get(target, &format!("/v2/health/{probe}"), time_max)
}

/// Status code and body of a GET; or why there is no answer. It runs on its own runtime, on this thread.
pub(super) fn get(target: &Target, path: &str, time_max: Duration) -> Result<(u16, String), String> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    // One time limit for everything, however slowly the bytes arrive.
    let answer = runtime.block_on(async { timeout(time_max, answer(target, path)).await });
    // Does not wait for name resolution, which cannot be cancelled.
    runtime.shutdown_background();
    answer.unwrap_or_else(|_| Err(format!("no answer within {} ms", time_max.as_millis())))
}

/// The addresses of the host. Resolving a name may take long, so a thread does it. The thread is created here, because tokio
/// takes for granted that the system allows one.
async fn addresses(target: &Target) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = target.host.parse::<IpAddr>() {
        return Ok(vec![(ip, target.port).into()]);
    }
    let (tell, told) = oneshot::channel();
    let host = (target.host.clone(), target.port);
    let asked = thread::Builder::new().name("ocelli-name".into()).spawn(move || {
        // The receiver may have given up.
        let _ = tell.send(host.to_socket_addrs().map(Iterator::collect));
    });
    asked.map_err(|error| io::Error::other(format!("no thread to ask for its address: {error}")))?;
    told.await.map_err(io::Error::other)?
}

async fn answer(target: &Target, path: &str) -> Result<(u16, String), String> {
    let request = Request::get(path)
        .header(header::HOST, target.authority())
        .header(header::USER_AGENT, "ocelli")
        .header(header::CONNECTION, "close")
        .body(Body::empty())
        .map_err(|error| error.to_string())?;
    let stream = TcpStream::connect(&*addresses(target).await.map_err(|error| error.to_string())?).await;
    let stream = TokioIo::new(stream.map_err(|error| error.to_string())?);
    let (mut sender, connection) = http1::handshake(stream).await.map_err(|error| causes(&error))?;
    tokio::spawn(connection);
    let reply = sender.send_request(request).await.map_err(|error| match error {
        error if error.is_parse() => "the answer is not HTTP".to_owned(),
        error if error.is_incomplete_message() => "the connection was closed without an answer".to_owned(),
        error => causes(&error),
    })?;
    let status = reply.status().as_u16();
    let body = Limited::new(reply.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => format!("the answer is longer than {ANSWER_BYTES_MAX} bytes"),
        false => "the answer broke off".to_owned(),
    })?;
    Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}

/// One line about the answer, and whether it is good.
pub(super) fn report(target: &Target, probe: &str, answer: &Result<(u16, String), String>) -> (String, bool) {
    let from = target.authority();
    match answer {
        Ok((200, _)) => (format!("{probe}: {from} answered 200"), true),
        Ok((code, body)) => {
            let reason = reason(body);
            let colon = if reason.is_empty() { "" } else { ": " };
            (format!("not {probe}: {from} answered {code}{colon}{reason}"), false)
        }
        Err(reason) => (format!("not {probe}: {from}: {reason}"), false),
    }
}

/// The reason in the body: its `error`, if it is a reply of Ocelli's, otherwise its beginning. Always one line.
fn reason(body: &str) -> String {
    let json = serde_json::from_str::<serde_json::Value>(body).ok();
    let error = json.as_ref().and_then(|json| json.get("error")?.as_str());
    let text: String = error.unwrap_or(body).trim().chars().take(REASON_MAX).collect();
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };

    /// A server that reads one request, writes these pieces, and hands the request back.
    fn server(pieces: &'static [&'static str]) -> (Target, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let served = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).expect("a request");
                request.push(byte[0]);
            }
            for piece in pieces {
                stream.write_all(piece.as_bytes()).expect("a reader");
            }
            String::from_utf8(request).expect("UTF-8")
        });
        let target = Target { host: "127.0.0.1".into(), port };
        (target, served)
    }

    fn check(pieces: &'static [&'static str], probe: &str, line: &str, healthy: bool) {
        let (target, served) = server(pieces);
        let answer = ask(&target, probe, Duration::from_secs(30));
        let request = served.join().expect("the server ends");
        assert!(
            request.starts_with(&format!("GET /v2/health/{probe} HTTP/1.1\r\nhost: 127.0.0.1:")),
            "{request}"
        );
        let (got, good) = report(&target, probe, &answer);
        let got = got.replace(&target.port.to_string(), "PORT");
        assert_eq!((got.as_str(), good), (line, healthy));
    }

    #[test]
    fn two_hundred_is_healthy() {
        check(
            &["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", "{}"],
            "ready",
            "ready: 127.0.0.1:PORT answered 200",
            true,
        );
        check(&["HTTP/1.1 200 OK\r\n", "\r\n"], "live", "live: 127.0.0.1:PORT answered 200", true);
    }

    #[test]
    fn anything_else_is_not_and_says_why_on_one_line() {
        check(
            &[
                "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 35\r\n\r\n{\"error\":\"the server\\nis draining\"}",
            ],
            "ready",
            "not ready: 127.0.0.1:PORT answered 503: the server is draining",
            false,
        );
        check(
            &["HTTP/1.1 404 Not Found\r\n\r\nno\u{1b}[31m such\r\npage\n"],
            "live",
            "not live: 127.0.0.1:PORT answered 404: no [31m such  page",
            false,
        );
        check(
            &["HTTP/1.1 301 Moved\r\ncontent-length: 0\r\n\r\n"],
            "ready",
            "not ready: 127.0.0.1:PORT answered 301",
            false,
        );
        let half = &["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"];
        check(half, "ready", "not ready: 127.0.0.1:PORT: the answer broke off", false);
        check(&[], "live", "not live: 127.0.0.1:PORT: the connection was closed without an answer", false);
        check(&["SSH-2.0-x\r\n"], "ready", "not ready: 127.0.0.1:PORT: the answer is not HTTP", false);
    }

    #[test]
    fn a_server_that_is_not_there_is_not_healthy() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let target = Target { host: "127.0.0.1".into(), port };
        let (line, healthy) = report(&target, "live", &ask(&target, "live", TIME_MAX));
        assert!(!healthy && line.contains("refused"), "{line}");
    }

    #[test]
    fn a_server_that_does_not_answer_is_given_up() {
        // The system accepts connections; nobody reads from them.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let target =
            Target { host: "127.0.0.1".into(), port: listener.local_addr().expect("an address").port() };
        let answer = ask(&target, "live", Duration::from_millis(30));
        assert_eq!(answer, Err("no answer within 30 ms".into()));
    }

    #[test]
    fn an_endless_answer_is_cut() {
        let (target, served) = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let served = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a caller");
                // The request must be read first: an answer before it would not count.
                assert!(stream.read(&mut [0; 4096]).expect("a request") > 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").expect("a reader");
                // Until the caller closes the connection.
                while stream.write_all(&[b'x'; 4096]).is_ok() {}
            });
            let host = "127.0.0.1".into();
            (Target { host, port }, served)
        };
        let answer = ask(&target, "live", Duration::from_secs(30));
        served.join().expect("the server ends");
        assert_eq!(answer, Err("the answer is longer than 1048576 bytes".into()));
    }
}
