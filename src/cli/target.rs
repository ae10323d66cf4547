//! The server that a command asks, and its default address.

use crate::config::Config;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The server to ask.
#[derive(Debug, PartialEq)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Target {
    /// Parses `http://HOST[:PORT][/]`; the error says what is wrong.
    pub(super) fn parse(url: &str) -> Result<Target, String> {
        let refused =
            || format!("the address {url:?} is not http://HOST[:PORT], such as http://127.0.0.1:8000");
        let authority = url.strip_prefix("http://").ok_or_else(refused)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        // A colon after the last bracket begins the port; colons in brackets belong to an IPv6 address.
        let colon =
            authority.rfind(':').filter(|colon| authority.rfind(']').is_none_or(|bracket| bracket < *colon));
        let (host, port) = match colon {
            Some(colon) => {
                let port = authority[colon + 1..].parse().map_err(|_| refused())?;
                (&authority[..colon], port)
            }
            None => (authority, 80),
        };
        let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let fine = match inner {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty() && (host.bytes()).all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            }
        };
        if !fine || port == 0 {
            return Err(refused());
        }
        Ok(Target { host: inner.unwrap_or(host).into(), port })
    }

    /// As in a `Host` header.
    pub(super) fn authority(&self) -> String {
        let Target { host, port } = self;
        match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }
    }
}

/// The URL of a server with this configuration, from the same machine: its admin listener, otherwise its API.
pub(super) fn default_url(config: &Config) -> Result<String, String> {
    let listen = config.admin_listen.or(config.listen.first().copied()).ok_or("listen is empty")?;
    if listen.port() == 0 {
        return Err(format!("cannot tell which port {listen} became: name it with --url http://HOST:PORT"));
    }
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Ok(format!("http://{}", SocketAddr::new(ip, listen.port())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_plain_http_to_a_host() {
        let target = |host: &str, port| Ok(Target { host: host.into(), port });
        assert_eq!(Target::parse("http://127.0.0.1:8000"), target("127.0.0.1", 8000));
        assert_eq!(Target::parse("http://localhost/"), target("localhost", 80));
        assert_eq!(Target::parse("http://[::1]:8000/"), target("::1", 8000));
        assert_eq!(Target::parse("http://[::1]"), target("::1", 80));
        for url in [
            "",
            "127.0.0.1:8000",
            "https://127.0.0.1",
            "http://",
            "http://:80",
            "http://h:0",
            "http://h:99999",
            "http://h/v2",
            "http://u@h",
            "http://h\r\nX: y",
            "http://[::1",
            "http://::1:80",
        ] {
            let error = Target::parse(url).expect_err(url);
            assert!(error.starts_with(&format!("the address {url:?} is not")), "{error}");
        }
        let six = Target::parse("http://[::1]:8000").expect("a URL");
        assert_eq!(six.authority(), "[::1]:8000");
    }

    #[test]
    fn the_default_is_the_admin_listener_from_this_machine() {
        let check = |listen: &str, admin: &str, expected: Result<&str, ()>| {
            let config = Config {
                listen: vec![listen.parse().expect("an address")],
                admin_listen: admin.parse().ok(),
                ..Config::default()
            };
            let url = default_url(&config);
            assert_eq!(url.as_deref().map_err(|_| ()), expected);
        };
        check("127.0.0.1:1", "127.0.0.1:2", Ok("http://127.0.0.1:2"));
        check("0.0.0.0:1", "", Ok("http://127.0.0.1:1"));
        check("0.0.0.0:1", "[::]:2", Ok("http://[::1]:2"));
        check("10.0.0.7:1", "", Ok("http://10.0.0.7:1"));
        check("127.0.0.1:0", "", Err(()));
    }
}
