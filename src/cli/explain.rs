//! `sluice explain`: which rules a request meets, and why.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Arg, ArgMatches, Command, value_parser};

use super::{BAD, OK, UNUSABLE, descriptors_arg, format_arg, put};
use crate::{
    config::{CompileOptions, compile, read_sources, settings::Settings},
    explain::{explain, parse_descriptor},
    http::debug::explain_path,
};

const PATIENCE: Duration = Duration::from_secs(5);

pub fn command() -> Command {
    Command::new("explain")
        .about("Say which rule a request meets and why, its counters and their slots; charges nothing")
        .after_help(
            "Examples:\n  sluice explain --rules config/rules --domain edge api_key=abc\n  sluice explain --server 127.0.0.1:6070 --domain \
             edge api_key=abc tenant=acme,path=/v1\n\nOffline, the rules come from files. Live, a running server is asked on its debug \
             port, and says where the counters stand, too.",
        )
        .arg(descriptors_arg())
        .arg(Arg::new("domain").long("domain").value_name("NAME").required(true).help("The domain of the request"))
        .arg(
            Arg::new("rules")
                .long("rules")
                .value_name("PATH")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("server")
                .help("A file or directory with rules [default: what RATE_LIMIT_CONFIG says, else as for `serve`]"),
        )
        .arg(
            Arg::new("server")
                .long("server")
                .value_name("HOST:PORT")
                .help("The debug port of a running sluice, such as 127.0.0.1:6070"),
        )
        .arg(format_arg())
}

pub fn run(matches: &ArgMatches) -> u8 {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let descriptors: Vec<String> = matches.get_many("descriptors").into_iter().flatten().cloned().collect();
    let mut parsed = Vec::new();
    for descriptor in &descriptors {
        match parse_descriptor(descriptor) {
            Ok(entries) => parsed.push(entries),
            Err(reason) => {
                eprintln!("sluice: '{descriptor}' is no descriptor: {reason}");
                return UNUSABLE;
            }
        }
    }
    let (domain, json) = (text("domain"), text("format") == "json");
    if let Some(server) = matches.get_one::<String>("server") {
        return match ask(server, &domain, &descriptors, json) {
            Ok(answer) => {
                put(answer.trim_end());
                OK
            }
            Err(failed) => {
                eprintln!("sluice: {failed:#}");
                UNUSABLE
            }
        };
    }
    offline(matches.get_one::<PathBuf>("rules"), &domain, &parsed, json)
}

/// By the rules in files, with the keys that a server with these settings would have.
fn offline(path: Option<&PathBuf>, domain: &str, descriptors: &[Vec<(String, String)>], json: bool) -> u8 {
    let (path, options) = match Settings::rules_of_process(path) {
        Ok(found) => found,
        Err(bad) => {
            bad.iter().for_each(|setting| eprintln!("sluice: {setting}"));
            return UNUSABLE;
        }
    };
    let sources = match read_sources(&path) {
        Ok(sources) => sources,
        Err(error) => {
            eprintln!("sluice: {error}");
            return UNUSABLE;
        }
    };
    match compile(&sources, &CompileOptions { merge_domains: true, ..options }) {
        Ok(compiled) => {
            let explanation = explain(&compiled.set, domain, descriptors);
            if json {
                put(serde_json::to_string_pretty(&explanation).unwrap_or_default());
            } else {
                put(&explanation);
            }
            OK
        }
        Err(errors) => {
            errors.iter().for_each(|error| eprintln!("{error}\n"));
            eprintln!("sluice: the rules in {} are bad: see above", path.display());
            BAD
        }
    }
}

/// One GET, over plain HTTP: the debug port has no more than that.
fn ask(server: &str, domain: &str, descriptors: &[String], json: bool) -> anyhow::Result<String> {
    let address = server.trim_start_matches("http://").trim_end_matches('/');
    let path = explain_path(domain, descriptors, if json { "json" } else { "text" });
    let unreachable =
        || format!("cannot reach {address}: give the debug address of a running sluice (DEBUG_HOST:DEBUG_PORT)");
    let (resolved, mut stream) = connect(address).with_context(unreachable)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Not the name: the debug port answers to addresses.
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {resolved}\r\nconnection: close\r\n\r\n").with_context(unreachable)?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).with_context(unreachable)?;
    let response = String::from_utf8_lossy(&response);
    let (head, body) = response.split_once("\r\n\r\n").with_context(|| format!("{address} does not speak HTTP"))?;
    if !head.starts_with("HTTP/1.1 200") {
        bail!("{address} answers: {}", body.trim());
    }
    Ok(body.to_owned())
}

/// To the first of its addresses that answers: a name often means `::1` and 127.0.0.1, and the debug port is on one of them.
fn connect(address: &str) -> io::Result<(SocketAddr, TcpStream)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, PATIENCE) {
            Ok(stream) => return Ok((resolved, stream)),
            Err(error) => last = error,
        }
    }
    Err(last)
}
