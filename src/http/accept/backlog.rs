//! Empties a listener's backlog before it closes. To its client, a connection in the backlog is open, and it may have sent a request.
//! Closing the listener would reset it, so these connections are accepted first, and handshakes under way are waited for.

use super::is_about_one_client;
use socket2::{SockFilter, SockRef};
use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};
use tokio::time::Instant;

/// How long to wait for handshakes once new clients are turned away, or, if they cannot be, how long new clients are still served. It is
/// also the time after which a peer that has lost a segment of its handshake sends it again (RFC 6298, section 2).
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(1);
/// Between two looks at the handshakes.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Offset of the flags in a TCP header.
const FLAGS: u32 = 13;
const SYN: u32 = 0x02;
const ACK: u32 = 0x10;
// Classic BPF: load a byte, and, jump if equal, return how many bytes to keep.
const LOAD_BYTE: u16 = 0x30;
const AND: u16 = 0x54;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Passes each connection in the backlog to `serve`, until none is left. `serve` returns whether there is room for one more.
pub(super) async fn empty(listener: &TcpListener, mut serve: impl FnMut(TcpStream, SocketAddr) -> bool) {
    let turned_away = turn_newcomers_away(listener);
    match &turned_away {
        Ok(()) => (),
        // Containers mostly lack the right to (CAP_NET_ADMIN), and clients that check readiness have long gone elsewhere.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            tracing::debug!(%error, "a connection that comes while the listener closes may be reset");
        }
        Err(error) => {
            tracing::warn!(%error, "a connection that comes while the listener closes may be reset");
        }
    }
    let port = listener.local_addr().map(|address| address.port()).unwrap_or_default();
    let until = Instant::now() + HANDSHAKE_TIME_MAX;
    loop {
        // Looked up before accepting: a connection whose handshake has ended by now is in the backlog.
        let under_way = handshakes_under_way(port);
        loop {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_about_one_client(error.kind()) => continue,
                Err(_) => break,
            };
            let endless = turned_away.is_err() && Instant::now() >= until;
            if !serve(stream, peer) || endless {
                return;
            }
        }
        if !under_way || Instant::now() >= until {
            return;
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// From now on the kernel drops each segment that asks for a new connection, as if it had been lost. Handshakes under way are finished. A
/// client that was ignored asks again after a second; by then the listener is closed and refuses it.
fn turn_newcomers_away(listener: &TcpListener) -> io::Result<()> {
    SockRef::from(listener).attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ])
}

/// Whether a handshake on this port is under way. A client that has our SYN-ACK sees an open connection even before its own ACK reaches us.
/// That takes a round trip, or as long as this machine has no core free for it.
fn handshakes_under_way(port: u16) -> bool {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .map(|table| fs::read_to_string(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).any(|line| is_handshake(line, port))
}

/// Whether a line of the kernel's table is a handshake on this port (proc_net_tcp of the kernel's documentation).
fn is_handshake(line: &str, port: u16) -> bool {
    const SYN_RECEIVED: &str = "03";
    let mut cells = line.split_ascii_whitespace().skip(1);
    let (local, _remote, state) = (cells.next(), cells.next(), cells.next());
    let local = local.and_then(|local| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok());
    state == Some(SYN_RECEIVED) && local == Some(port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[tokio::test]
    async fn one_whose_handshake_is_under_way_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        // All but the first segment of a handshake is dropped: the peer has our answer, but its own never reaches us.
        let of_first = SockRef::from(&listener).attach_filter(&[
            SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
            SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
            SockFilter::new(RETURN, 0, 0, u32::MAX),
            SockFilter::new(RETURN, 0, 0, 0),
        ]);
        if let Err(error) = of_first {
            println!("not tested where sockets may not be filtered: {error}");
            return;
        }
        let port = listener.local_addr().unwrap().port();
        assert!(!handshakes_under_way(port));
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(handshakes_under_way(port));
        // The peer sends the lost segment again, and the filter that `empty` attaches lets it through.
        peer.write_all(b"hello").unwrap();
        let mut taken = Vec::new();
        empty(&listener, |stream, _| {
            taken.push(stream);
            true
        })
        .await;
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].peer_addr().unwrap(), peer.local_addr().unwrap());
        assert!(!handshakes_under_way(port));
    }

    #[test]
    fn handshakes_are_told_from_what_else_is_in_the_table() {
        let handshake = "  17: 0100007F:1F40 0100007F:CF2A 03 00000000:00000000 01:00000064 00000000  0  0 0 1 0000000000000000";
        let wide = "   3: 00000000000000000000000001000000:1F40 00000000000000000000000001000000:CF2A 03 00000000:00000000";
        for (line, port, expected) in [
            (handshake, 8000, true),
            (wide, 8000, true),
            (handshake, 8001, false),
            (&*handshake.replace(" 03 ", " 01 "), 8000, false),
            ("  sl  local_address rem_address   st tx_queue rx_queue", 8000, false),
            ("", 0, false),
        ] {
            assert_eq!(is_handshake(line, port), expected, "{line}");
        }
    }
}
