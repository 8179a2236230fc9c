//! The ports and sockets that `serve` would listen on: free, or already served by a sluice that is well.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::FileTypeExt as _,
    path::Path,
};

use futures_util::future::join_all;

use super::{
    certificates::judge_chain,
    finding::Finding,
    instance::{self, Answer, Place},
};
use crate::{
    config::settings::Settings,
    grpc::listen::{UnixSettings, bind_tcp},
};

/// The longest name that the system takes for a socket.
const SOCKET_PATH_MAX: usize = 107;

/// A listener for HTTP, and what a sluice answers there.
struct Http {
    env: &'static str,
    address: SocketAddr,
    path: String,
    /// Stands in the answer of a sluice and of nobody else.
    mark: &'static str,
}

pub async fn examine(settings: &Settings) -> Vec<Finding> {
    let http = |env, address, path: &str, mark| Http { env, address, path: path.to_owned(), mark };
    let mut others = vec![
        http("PORT", settings.http, "/metrics", "sluice_build_info"),
        http("DEBUG_PORT", settings.debug, "/config", "\"generation\""),
    ];
    if let Some((address, path)) = &settings.telemetry.prometheus {
        others.push(http("PROMETHEUS_ADDR", *address, path, "sluice_build_info"));
    }
    let (mut findings, others) = tokio::join!(grpc(settings), join_all(others.iter().map(examine_http)));
    findings.extend(others);
    findings
}

/// Whether a port is free, or the error that says why it cannot be had.
fn is_free(address: SocketAddr) -> io::Result<bool> {
    match bind_tcp(address) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(false),
        Err(error) => Err(error),
    }
}

fn free(env: &str, address: SocketAddr) -> Finding {
    let message = if address.port() == 0 { "any port that is free".to_owned() } else { format!("{address} is free") };
    Finding::ok("listen", &env, message)
}

fn unusable(env: &str, address: SocketAddr, error: &io::Error) -> Finding {
    let what = match error.kind() {
        io::ErrorKind::PermissionDenied => "take a port from 1024 on, or grant CAP_NET_BIND_SERVICE",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address, use one that it has or 0.0.0.0",
        _ => "set another",
    };
    Finding::fail("listen", &env, format!("cannot listen on {address}: {error}: {what}"))
}

/// Where a listener on any address is reached.
fn reached_at(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn examine_http(http: &Http) -> Finding {
    let Http { env, address, path, mark } = http;
    match is_free(*address) {
        Err(error) => unusable(env, *address, &error),
        Ok(true) => free(env, *address),
        Ok(false) => match instance::get(reached_at(*address), path).await {
            Some(body) if body.contains(mark) => judge_version(env, *address, &body),
            _ => taken(env, address),
        },
    }
}

fn taken(env: &impl ToString, place: &impl ToString) -> Finding {
    let message = format!("{} is taken by something that is no sluice: stop it, or set another", place.to_string());
    Finding::fail("listen", env, message)
}

/// Metrics tell the version of whoever serves them; other answers do not.
fn judge_version(env: &str, address: SocketAddr, body: &str) -> Finding {
    let theirs = body.split("sluice_build_info{version=\"").nth(1).and_then(|rest| rest.split('"').next());
    let ours = env!("CARGO_PKG_VERSION");
    match theirs {
        Some(theirs) if theirs != ours => {
            let message = format!("a sluice {theirs} serves on {address}, and this is {ours}: use its own doctor");
            Finding::warn("listen", &env, message)
        }
        Some(theirs) => Finding::ok("listen", &env, format!("a sluice {theirs} serves on {address}")),
        None => Finding::ok("listen", &env, format!("a sluice serves on {address}")),
    }
}

async fn grpc(settings: &Settings) -> Vec<Finding> {
    if let Some(unix) = &settings.grpc.unix {
        return grpc_on_socket(settings, unix).await;
    }
    let address = settings.grpc.address;
    match is_free(address) {
        Err(error) => vec![unusable("GRPC_PORT", address, &error)],
        Ok(true) => vec![free("GRPC_PORT", address)],
        Ok(false) => {
            let place = Place::Tcp(reached_at(address));
            running(settings, "GRPC_PORT", &address.to_string(), &place).await
        }
    }
}

async fn running(settings: &Settings, env: &str, shown: &str, place: &Place) -> Vec<Finding> {
    let mut findings = Vec::new();
    if settings.grpc.tls.is_some() {
        let ends_s = instance::shown_ends_s(place).await;
        findings.extend(judge_chain(&shown, "the certificate that is served now", &ends_s, true));
    }
    if settings.grpc.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()) {
        findings.push(if findings.is_empty() {
            taken(&env, &shown)
        } else {
            Finding::ok(
                "listen",
                &env,
                format!("{shown} is served over TLS to callers with a certificate; not asked further"),
            )
        });
        return findings;
    }
    findings.push(match instance::health(place, settings.grpc.tls.is_some()).await {
        Answer::Serving => Finding::ok("listen", &env, format!("a sluice serves on {shown} and says SERVING")),
        Answer::NotServing => {
            let what = "see its log, and /readyz on its HTTP port";
            Finding::fail("listen", &env, format!("a sluice serves on {shown}, but says NOT_SERVING: {what}"))
        }
        Answer::Stranger => {
            Finding::fail("listen", &env, format!("{shown} is taken by another gRPC server: stop it, or set another"))
        }
        Answer::Nothing(reason) => {
            let what = "stop it, or set another";
            Finding::fail(
                "listen",
                &env,
                format!("{shown} is taken by something that answers no gRPC ({reason}): {what}"),
            )
        }
    });
    findings
}

async fn grpc_on_socket(settings: &Settings, unix: &UnixSettings) -> Vec<Finding> {
    let path = unix.path.display().to_string();
    let (env, place) = ("GRPC_UDS", Place::Unix(unix.path.clone()));
    let fail = |message: String| vec![Finding::fail("listen", &env, message)];
    if place.is_taken().await {
        return running(settings, env, &path, &place).await;
    }
    if path.starts_with('@') {
        return vec![Finding::ok("listen", &env, format!("{path} is free"))];
    }
    if path.len() > SOCKET_PATH_MAX {
        return fail(format!("{path} has {} bytes, at most {SOCKET_PATH_MAX} are possible: shorten it", path.len()));
    }
    if fs::symlink_metadata(&unix.path).is_ok_and(|found| !found.file_type().is_socket()) {
        return fail(format!("{path} exists and is no socket: name another path, or remove it"));
    }
    let directory = unix.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match try_to_write(directory) {
        Ok(()) => vec![Finding::ok("listen", &env, format!("{path} can be made"))],
        Err(error) => fail(format!("no socket can be made in {}: {error}: make it writable", directory.display())),
    }
}

/// Makes a file there, and takes it away again.
fn try_to_write(directory: &Path) -> io::Result<()> {
    let file = directory.join(format!(".sluice-doctor-{}", std::process::id()));
    fs::File::create_new(&file)?;
    fs::remove_file(&file)
}
