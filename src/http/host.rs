//! Whether a caller meant us by the name that it used.
//!
//! A page in a browser can have its own name point to any address (DNS rebinding), and is then let to read what it finds there.
//! It cannot do so under an address, nor under `localhost`: so these are the only names that a port for operators answers to.

use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{StatusCode, header::HOST},
    middleware::Next,
    response::Response,
};

use super::sentence;

/// Answers 421 to a caller who used any other name. One who used none is no browser.
pub async fn is_ours(request: Request, next: Next) -> Response {
    let named = request.headers().get_all(HOST).iter().find(|host| !host.to_str().is_ok_and(is_address_or_localhost));
    match named {
        None => next.run(request).await,
        Some(host) => sentence(
            StatusCode::MISDIRECTED_REQUEST,
            format_args!(
                "this port answers to its address and to localhost, not to {host:?}: a page in a browser could ask so"
            ),
        ),
    }
}

fn is_address_or_localhost(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_address = match bare {
        Some(address) => matches!(address.parse(), Ok(IpAddr::V6(_))),
        None => matches!(name.parse(), Ok(IpAddr::V4(_))),
    };
    is_address || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_localhost_are_ours_and_no_other_name_is() {
        for host in ["localhost", "LocalHost:6070", "127.0.0.1", "127.0.0.1:6070", "10.0.0.7:80", "[::1]", "[::1]:6070"]
        {
            assert!(is_address_or_localhost(host), "{host}");
        }
        for host in [
            "",
            ":6070",
            "evil.test",
            "evil.test:6070",
            "localhost.evil.test",
            "127.0.0.1.evil.test:80",
            "localhost:80@evil.test",
            "evil.test:localhost",
            "127.0.0.1:80:80",
            "::1",
            "[::1",
            "[127.0.0.1]",
            "2130706433",
            "0x7f.1",
            "localhost.",
            "a b",
        ] {
            assert!(!is_address_or_localhost(host), "{host}");
        }
    }
}
