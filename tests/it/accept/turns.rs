//! Connections of one thread, one of which always has something to do.

use super::*;
use ocelli::http::accept::threads::Threads;
use std::time::Instant;

/// Keeps the thread for as long as large metrics take to be written.
pub(super) async fn busy(done: Arc<AtomicUsize>) -> &'static str {
    let until = Instant::now() + Duration::from_millis(2);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    done.fetch_add(1, Relaxed);
    "hello"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_requests_keep_the_thread_lets_others_in_between() {
    let threads = Threads::start(1).unwrap();
    let server = start_on(settings(), threads.handles().to_vec()).await;
    let mut other = server.send(HELLO).await;
    reply(&mut other).await;
    let many = "GET /busy HTTP/1.1\r\nHost: a\r\n\r\n".repeat(4000);
    let pipelined = server.send(many).await;
    until(|| server.busy.load(Relaxed) > 0).await;
    // How many of them went before each request of the other.
    let mut before = 0;
    for _ in 0..20 {
        let begun = server.busy.load(Relaxed);
        other.write_all(HELLO.as_bytes()).await.unwrap();
        reply(&mut other).await;
        before += server.busy.load(Relaxed) - begun;
    }
    println!("{before} of 4000 went before 20");
    assert!(before > 0 && before < 400, "{before} went before 20");
    drop(pipelined);
}
