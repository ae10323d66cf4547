//! The end of a listener, stage by stage, and who can hold it up: nobody.

use super::{HALF, HELLO, SHORT, reply, rest, settings, soon, start, start_on, until};
use ocelli::http::accept::{Ended, Settings, threads::Threads};
use std::sync::{Arc, atomic::Ordering::Relaxed, mpsc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};

#[tokio::test]
async fn while_draining_requests_are_answered_and_told_to_go() {
    let server = start(settings()).await;
    let mut kept = server.send(HELLO).await;
    assert!(!reply(&mut kept).await.contains("connection: close"));
    server.stages.drain();
    kept.write_all(HELLO.as_bytes()).await.unwrap();
    for stream in [kept, server.send(HELLO).await] {
        let reply = rest(stream).await;
        assert!(reply.contains("connection: close") && reply.ends_with("hello"), "{reply}");
    }
    server.stages.close();
    assert_eq!(server.ended().await, Ended { connections_dropped: 0 });
}

#[tokio::test]
async fn closing_answers_what_was_asked_and_lets_idle_connections_go() {
    let server = start(settings()).await;
    let asking = server.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let silent = server.send("").await;
    let mut idle = server.send(HELLO).await;
    reply(&mut idle).await;
    until(|| server.connections.accepted.load(Relaxed) == 3).await;
    server.stages.close();
    assert_eq!(rest(idle).await, "");
    assert_eq!(rest(silent).await, "");
    assert!(TcpStream::connect(server.address).await.is_err());
    server.go.notify_one();
    assert!(rest(asking).await.ends_with("waited"));
    assert_eq!(server.ended().await, Ended { connections_dropped: 0 });
}

#[tokio::test]
async fn a_first_request_that_has_begun_may_be_sent_to_its_end() {
    let server = start(settings()).await;
    let mut half = server.send(HALF).await;
    let mut idle = server.send(HELLO).await;
    reply(&mut idle).await;
    until(|| server.connections.accepted.load(Relaxed) == 2).await;
    server.stages.close();
    // It closes.
    assert_eq!(rest(idle).await, "");
    half.write_all(b"t: a\r\n\r\n").await.unwrap();
    let reply = rest(half).await;
    assert!(reply.contains("connection: close") && reply.ends_with("hello"), "{reply}");
    assert_eq!(server.ended().await, Ended { connections_dropped: 0 });
}

#[tokio::test]
async fn half_a_head_holds_up_the_end_for_a_moment_and_is_no_request() {
    let server = start(settings()).await;
    let half = server.send(HALF).await;
    // A second one on a connection that has had its answer.
    let mut kept = server.send(HELLO).await;
    reply(&mut kept).await;
    kept.write_all(HALF.as_bytes()).await.unwrap();
    until(|| server.connections.accepted.load(Relaxed) == 2).await;
    server.stages.close();
    assert_eq!(server.ended().await, Ended { connections_dropped: 0 });
    for stream in [half, kept] {
        assert_eq!(rest(stream).await, "");
    }
}

#[tokio::test]
async fn half_a_head_that_is_cut_off_is_not_counted() {
    let server = start(Settings { close_timeout: SHORT, ..settings() }).await;
    let half = server.send(HALF).await;
    until(|| server.connections.accepted.load(Relaxed) == 1).await;
    server.stages.close();
    assert_eq!(server.ended().await, Ended { connections_dropped: 0 });
    assert_eq!(rest(half).await, "");
}

#[tokio::test]
async fn aborting_waits_for_nothing_and_counts_the_connections_that_have_a_request() {
    let server = start(settings()).await;
    let silent = server.send("").await;
    let mut idle = server.send(HELLO).await;
    reply(&mut idle).await;
    let mut idle_http2 = server.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0").await;
    // Its settings: the connection is up.
    soon(idle_http2.read_exact(&mut [0; 9])).await.unwrap();
    let asking = server.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n").await;
    until(|| server.connections.accepted.load(Relaxed) == 4 && server.waits.load(Relaxed) == 1).await;
    let connections = Arc::clone(&server.connections);
    server.stages.abort();
    assert_eq!(server.ended().await, Ended { connections_dropped: 1 });
    assert_eq!((connections.dropped.load(Relaxed), connections.open.load(Relaxed)), (1, 0));
    for stream in [asking, idle, silent] {
        assert_eq!(rest(stream).await, "");
    }
}

#[tokio::test]
async fn a_thread_that_is_stuck_is_not_waited_for_and_what_it_has_not_looked_at_counts_as_cut() {
    let threads = Threads::start(1).unwrap();
    let server = start_on(settings(), threads.handles().to_vec()).await;
    // All that there is on it has been answered.
    let mut idle = server.send(HELLO).await;
    reply(&mut idle).await;
    let ((go, wait), (tell, stuck)) = (mpsc::channel::<()>(), oneshot::channel());
    threads.handles()[0].spawn(async move {
        let _ = tell.send(());
        let _ = wait.recv();
    });
    stuck.await.unwrap();
    let asking = server.send(HELLO).await;
    until(|| server.connections.accepted.load(Relaxed) == 2).await;
    let connections = Arc::clone(&server.connections);
    server.stages.abort();
    assert_eq!(server.ended().await, Ended { connections_dropped: 1 });
    assert_eq!(connections.dropped.load(Relaxed), 1);
    // It goes on after all, and finds the connection gone.
    drop(go);
    for stream in [asking, idle] {
        assert_eq!(rest(stream).await, "");
    }
}
