//! Sockets that wait for connections.

use super::AppError;
use crate::config::Config;
use socket2::SockRef;
use std::{io, io::ErrorKind, net::SocketAddr};
use tokio::net::TcpListener;

/// The sockets that the configuration asks for.
pub(super) struct Sockets {
    /// The API: at least one.
    pub(super) api: Vec<Socket>,
    pub(super) grpc: Option<Socket>,
    pub(super) admin: Option<Socket>,
    pub(super) metrics: Option<Socket>,
}

/// A socket, and its actual address: the system chooses the port where 0 was asked for.
pub(super) struct Socket {
    pub(super) listener: TcpListener,
    at: SocketAddr,
}

/// Where a server listens.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The API: at least one.
    pub api: Vec<SocketAddr>,
    /// The same by gRPC.
    pub grpc: Option<SocketAddr>,
    /// The admin listener.
    pub admin: Option<SocketAddr>,
    /// The listener for metrics alone.
    pub metrics: Option<SocketAddr>,
}

impl Sockets {
    /// Listens.
    ///
    /// # Errors
    /// If the system refuses an address, with advice.
    pub(super) async fn bind(config: &Config) -> Result<Sockets, AppError> {
        let mut api = Vec::new();
        for address in &config.listen {
            api.push(bind(*address, "listen").await?);
        }
        Ok(Sockets {
            api,
            admin: bind_where(config.admin_listen, "admin_listen").await?,
            metrics: bind_where(config.metrics_listen, "metrics_listen").await?,
            grpc: bind_where(config.grpc_listen, "grpc_listen").await?,
        })
    }

    pub(super) fn addresses(&self) -> Addresses {
        let at = |socket: &Option<Socket>| socket.as_ref().map(|socket| socket.at);
        Addresses {
            api: self.api.iter().map(|socket| socket.at).collect(),
            grpc: at(&self.grpc),
            admin: at(&self.admin),
            metrics: at(&self.metrics),
        }
    }
}

async fn bind_where(address: Option<SocketAddr>, option: &str) -> Result<Option<Socket>, AppError> {
    match address {
        Some(address) => bind(address, option).await.map(Some),
        None => Ok(None),
    }
}

async fn bind(address: SocketAddr, option: &str) -> Result<Socket, AppError> {
    let bound = TcpListener::bind(address).await.and_then(|listener| {
        let at = listener.local_addr()?;
        Ok(Socket { listener, at })
    });
    let bound =
        bound.map_err(|error| AppError::Failed(format!("{option}: {}", taken(address, option, &error))))?;
    if address.ip().to_canonical().is_loopback() {
        unpaced(&bound.listener);
    }
    Ok(bound)
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
        let Socket { listener, at } = bind(address.parse().unwrap(), "listen").await.unwrap();
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
