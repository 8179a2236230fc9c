//! The settings of the gRPC listener.

use std::{path::PathBuf, time::Duration};

use super::Reader;
use crate::grpc::{
    listen::UnixSettings,
    tls::{ClientName, TlsSettings},
};

#[derive(Clone, Debug)]
pub struct GrpcSettings {
    pub address: std::net::SocketAddr,
    /// Listened on instead of the address.
    pub unix: Option<UnixSettings>,
    pub tls: Option<TlsSettings>,
    /// Zero is never.
    pub max_connection_age: Duration,
    /// Zero is never.
    pub max_connection_age_grace: Duration,
    pub max_connections: usize,
    pub max_idle_connections: usize,
    /// Of every door.
    pub max_calls_in_flight: u64,
}

impl<L: Fn(&str) -> Option<String>> Reader<L> {
    pub(super) fn grpc(&self) -> GrpcSettings {
        GrpcSettings {
            address: self.address("GRPC_HOST", "GRPC_PORT"),
            unix: self.unix(),
            tls: self.grpc_tls(),
            max_connection_age: self.duration("GRPC_MAX_CONNECTION_AGE"),
            max_connection_age_grace: self.duration("GRPC_MAX_CONNECTION_AGE_GRACE"),
            max_connections: self.entries("GRPC_MAX_CONNECTIONS"),
            max_idle_connections: self.entries("GRPC_MAX_IDLE_CONNECTIONS"),
            max_calls_in_flight: self.entries("MAX_CALLS_IN_FLIGHT") as u64,
        }
    }

    fn unix(&self) -> Option<UnixSettings> {
        let mode = self.parsed("GRPC_UDS_MODE", 0, |text| match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(mode),
            _ => Err("use a mode as chmod writes it, such as 0666 or 0660".to_owned()),
        });
        self.given("GRPC_UDS").map(|path| UnixSettings { path: PathBuf::from(path), mode })
    }

    fn grpc_tls(&self) -> Option<TlsSettings> {
        let wanted = self.bool("GRPC_SERVER_USE_TLS");
        let certificate = self.file("GRPC_SERVER_TLS_CERT");
        let key = self.file("GRPC_SERVER_TLS_KEY");
        let client_ca = self.file("GRPC_CLIENT_TLS_CACERT");
        let name = self.given("GRPC_CLIENT_TLS_SAN");
        if !wanted {
            if client_ca.is_some() {
                self.warn(
                    "GRPC_CLIENT_TLS_CACERT is set, but callers are not asked for a certificate: GRPC_SERVER_USE_TLS is off"
                        .to_owned(),
                );
            }
            return None;
        }
        for (env, value) in [("GRPC_SERVER_TLS_CERT", &certificate), ("GRPC_SERVER_TLS_KEY", &key)] {
            if value.is_none() {
                self.reject(env, "is missing: GRPC_SERVER_USE_TLS needs a file in PEM form".to_owned());
            }
        }
        if name.is_some() && client_ca.is_none() {
            let message = "needs GRPC_CLIENT_TLS_CACERT: without it callers show no certificate";
            self.reject("GRPC_CLIENT_TLS_SAN", message.to_owned());
        }
        let client_name = name.and_then(|text| {
            let parsed = ClientName::parse(&text);
            if parsed.is_none() {
                let hint = "use a host name, or a URI such as spiffe://cluster.local/ns/edge/sa/envoy";
                self.reject("GRPC_CLIENT_TLS_SAN", format!("'{text}' cannot be used: {hint}"));
            }
            parsed
        });
        Some(TlsSettings { certificate: certificate?, key: key?, client_ca, client_name })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;

    #[test]
    fn a_unix_socket_may_be_connected_to_by_anybody_unless_a_mode_says_otherwise() {
        let (settings, _) = read(&[("GRPC_UDS", "/run/s.sock")]).unwrap();
        assert_eq!(settings.grpc.unix.unwrap().mode, 0o666);
        let (settings, _) = read(&[("GRPC_UDS", "/run/s.sock"), ("GRPC_UDS_MODE", "0660")]).unwrap();
        assert_eq!(settings.grpc.unix.unwrap().mode, 0o660);
        assert!(read(&[("GRPC_UDS_MODE", "rw")]).is_err());
    }

    #[test]
    fn tls_without_its_files_is_refused_with_all_that_is_missing() {
        let bad = read(&[("GRPC_SERVER_USE_TLS", "true"), ("GRPC_CLIENT_TLS_SAN", "a b")]).unwrap_err();
        let named: Vec<_> = bad.iter().map(|setting| setting.env).collect();
        assert_eq!(
            named,
            ["GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_SAN", "GRPC_CLIENT_TLS_SAN"]
        );
    }

    #[test]
    fn a_client_ca_that_has_no_effect_is_warned_of() {
        let (settings, warnings) = read(&[("GRPC_CLIENT_TLS_CACERT", "/ca.pem")]).unwrap();
        assert!(settings.grpc.tls.is_none());
        assert!(warnings[0].contains("GRPC_SERVER_USE_TLS is off"), "{warnings:?}");
    }

    #[test]
    fn ipv6_addresses_are_taken_with_and_without_brackets() {
        for host in ["::", "[::]"] {
            let (settings, _) = read(&[("GRPC_HOST", host), ("HOST", host)]).unwrap();
            assert_eq!(settings.grpc.address.to_string(), "[::]:8081");
            assert_eq!(settings.http.to_string(), "[::]:8080");
        }
    }
}
