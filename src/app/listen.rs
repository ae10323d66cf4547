//! Sockets that wait for connections.

use super::AppError;
use socket2::SockRef;
use std::{io, io::ErrorKind, net::SocketAddr};
use tokio::net::TcpListener;

/// Listens at the address that `option` names; returns the actual address, as the system chooses the port where 0 was asked for.
///
/// # Errors
/// If the system refuses, with advice.
pub(super) async fn bind(address: SocketAddr, option: &str) -> Result<(TcpListener, SocketAddr), AppError> {
    let bound = TcpListener::bind(address).await.and_then(|listener| {
        let at = listener.local_addr()?;
        Ok((listener, at))
    });
    let bound =
        bound.map_err(|error| AppError::Failed(format!("{option}: {}", taken(address, option, &error))))?;
    if address.ip().to_canonical().is_loopback() {
        unpaced(&bound.0);
    }
    Ok(bound)
}

/// Listens where `option` names an address.
///
/// # Errors
/// Those of [`bind`].
pub(super) async fn bind_where(
    address: Option<SocketAddr>,
    option: &str,
) -> Result<(Option<TcpListener>, Option<SocketAddr>), AppError> {
    let Some(address) = address else { return Ok((None, None)) };
    let (listener, at) = bind(address, option).await?;
    Ok((Some(listener), Some(at)))
}

/// Why an address that `option` names cannot be listened on, with advice.
pub(super) fn taken(address: SocketAddr, option: &str, error: &io::Error) -> String {
    let hint = match error.kind() {
        ErrorKind::AddrInUse => format!("; give {option} another port, or end what listens there"),
        _ => String::new(),
    };
    format!("cannot listen on {address}: {error}{hint}")
}

/// Makes the system send on accepted connections as fast as peers take the data, whatever congestion control the machine uses. Nothing is
/// lost within a machine, and pacing there (`bbr`) only costs CPU time. A connection that has started to be paced stays so; therefore
/// this is set on the listener, not on each accepted connection. Any process may choose `reno`.
fn unpaced(listener: &TcpListener) {
    // If it fails, replies are sent in the system's default way.
    let _ = SockRef::from(listener).set_tcp_congestion(b"reno");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use tokio::net::TcpStream;

    /// The congestion control of a connection that a listener on this address accepts.
    async fn of_accepted(address: &str) -> Vec<u8> {
        let (listener, at) = bind(address.parse().unwrap(), "listen").await.unwrap();
        let (_client, accepted) =
            tokio::join!(TcpStream::connect(("127.0.0.1", at.port())), listener.accept());
        SockRef::from(&accepted.unwrap().0).tcp_congestion().unwrap()
    }

    #[tokio::test]
    async fn connections_within_the_machine_are_not_paced_and_others_are_as_the_machine_has_them() {
        assert!(of_accepted("127.0.0.1:0").await.starts_with(b"reno\0"));
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let usual = SockRef::from(&plain).tcp_congestion().unwrap();
        assert_eq!(of_accepted("0.0.0.0:0").await, usual);
    }
}
