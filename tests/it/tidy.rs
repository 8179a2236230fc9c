//! Keeps what is written about the code true.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sluice::{config::settings::GROUPS, telemetry::metrics::FAMILIES};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below a directory with one of these endings, and its text.
fn files(directory: &str, endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut directories = vec![root().join(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if endings.iter().any(|ending| path.extension().is_some_and(|own| own == *ending)) {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "nothing below {directory}");
    found
}

/// Lines of code, with their numbers: comments are free to speak of anything.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    lines.filter(|(_, line)| !line.starts_with("//"))
}

fn none(places: &[String], rule: &str) {
    assert!(places.is_empty(), "{rule}:\n{}", places.join("\n"));
}

#[test]
fn the_engine_names_nothing_of_the_outside() {
    const FORBIDDEN: [&str; 12] = [
        "tokio",
        "redis",
        "tonic",
        "serde",
        "tracing",
        "metrics::",
        "Instant",
        "SystemTime",
        "f32",
        "f64",
        "async ",
        "std::env",
    ];
    let mut places = Vec::new();
    for (path, text) in files("src/engine", &["rs"]) {
        for (number, line) in code(&text) {
            places.extend(
                FORBIDDEN
                    .iter()
                    .filter(|word| line.contains(**word))
                    .map(|word| format!("{}:{number}: {word}", path.display())),
            );
        }
    }
    none(&places, "the engine is pure");
}

#[test]
fn no_file_is_longer_than_500_lines() {
    let mut all = files("src", &["rs"]);
    all.extend(files("tests", &["rs"]));
    all.extend(files("lua", &["lua"]));
    let long = all.iter().filter(|(_, text)| text.lines().count() > 500);
    none(
        &long.map(|(path, text)| format!("{}: {}", path.display(), text.lines().count())).collect::<Vec<_>>(),
        "one room each",
    );
}

#[test]
fn no_test_sleeps() {
    let mut places = Vec::new();
    for (path, text) in files("tests", &["rs"]).into_iter().chain(files("src", &["rs"])) {
        // Not by what is above it: a checkout may be called anything.
        let is_test = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().contains("tests");
        for (number, line) in code(&text).filter(|_| is_test) {
            // This test has to name what it looks for.
            let sleeps = ["thread::sleep", "time::sleep("].iter().any(|word| line.contains(word));
            if sleeps && !path.ends_with("tidy.rs") {
                places.push(format!("{}:{number}", path.display()));
            }
        }
    }
    none(&places, "wait for a condition instead");
}

#[test]
fn nothing_is_left_for_later() {
    let words = ["todo!", "unimplemented!", concat!("TO", "DO"), concat!("FIX", "ME"), "dbg!("];
    let mut places = Vec::new();
    for (path, text) in files("src", &["rs"]).into_iter().chain(files("lua", &["lua"])) {
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                places.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    none(&places, "finish it");
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

#[test]
fn every_setting_is_in_the_readme_with_its_default() {
    let readme = readme();
    let missing = GROUPS.iter().flat_map(|group| group.settings).filter(|setting| {
        let default = if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
        !readme.contains(&format!("| `{}` | {default} |", setting.env).replace("|  |", "| |"))
    });
    let rows = missing.map(|setting| {
        let default = if setting.default.is_empty() { String::new() } else { format!("`{}` ", setting.default) };
        format!("| `{}` | {default}| {} |", setting.env, setting.help)
    });
    none(&rows.collect::<Vec<_>>(), "the README has no such row");
}

#[test]
fn every_metric_is_in_the_readme() {
    let readme = readme();
    let missing = FAMILIES.iter().filter(|family| !readme.contains(&format!("| `{}` |", family.name)));
    none(
        &missing.map(|family| format!("| `{}` | ... | {} |", family.name, family.help)).collect::<Vec<_>>(),
        "no such row",
    );
}

/// What `.cargo/deny.toml` forbids, without cargo-deny and a network: `name`, `name@=version` or `name@<=version`.
#[test]
fn no_dependency_is_one_that_is_forbidden() {
    let deny = fs::read_to_string(root().join(".cargo/deny.toml")).unwrap();
    let forbidden: Vec<&str> =
        deny.lines().filter_map(|line| line.split("{ crate = \"").nth(1)?.split('"').next()).collect();
    assert!(forbidden.len() > 30, "{forbidden:?}");
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.map(|line| line.trim_end_matches('"').to_owned())
    };
    let packages: Vec<(String, String)> = lock
        .split("[[package]]")
        .filter_map(|package| Some((field(package, "name")?, field(package, "version")?)))
        .collect();
    assert!(packages.len() > 100);
    let version = |text: &str| -> Vec<u64> {
        let numbers = text.split(['-', '+']).next().unwrap_or_default().split('.');
        numbers.map(|number| number.parse().unwrap_or_else(|_| panic!("{text} is no version"))).collect()
    };
    let is_forbidden = |name: &str, its: &str, rule: &str| match rule.split_once('@') {
        None => name == rule,
        Some((crate_name, bound)) if crate_name == name => match (bound.strip_prefix("<="), bound.strip_prefix('=')) {
            (Some(most), _) => version(its) <= version(most),
            (_, Some(exactly)) => version(its) == version(exactly),
            _ => panic!("{rule} is neither <= nor ="),
        },
        Some(_) => false,
    };
    let places = packages.iter().flat_map(|(name, its)| {
        let rules = forbidden.iter().filter(|rule| is_forbidden(name, its, rule));
        rules.map(move |rule| format!("{name} {its}: {rule}"))
    });
    none(&places.collect::<Vec<_>>(), "see .cargo/deny.toml");
}

/// `[lints]` holds for every program, test and example of the package; nothing may allow itself what it forbids.
#[test]
fn unsafe_code_is_forbidden_everywhere() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("[lints.rust]\nunsafe_code = \"forbid\""));
    let mut places = Vec::new();
    for (path, text) in files("src", &["rs"]).into_iter().chain(files("tests", &["rs"])) {
        for (number, line) in code(&text) {
            let is_unsafe =
                line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == concat!("un", "safe"));
            if is_unsafe {
                places.push(format!("{}:{number}", path.display()));
            }
        }
    }
    none(&places, "there is another way");
}

/// As the README writes a size.
fn bytes(size: usize) -> String {
    match size {
        _ if size >= 1 << 20 && size.is_multiple_of(1 << 20) => format!("{} MiB", size >> 20),
        _ if size >= 1 << 10 && size.is_multiple_of(1 << 10) => format!("{} KiB", size >> 10),
        _ => size.to_string(),
    }
}

#[test]
fn every_limit_is_in_the_readme_as_it_is_in_the_code() {
    use sluice::{
        config::{read, sources, yaml},
        drain,
        engine::request,
        grpc::limits,
        http::{json, metrics, proto_json, server},
        store::redis::node,
        telemetry::metrics as telemetry,
    };
    let seconds = |time: std::time::Duration| format!("{} s", time.as_secs());
    let rows = [
        ("message of a call", bytes(limits::MESSAGE_BYTES_MAX)),
        ("message of the native API", bytes(limits::NATIVE_MESSAGE_BYTES_MAX)),
        ("body of `/json`", bytes(json::BODY_BYTES_MAX)),
        ("values in a `/json` body", proto_json::VALUES_MAX.to_string()),
        ("descriptors of a request", request::DESCRIPTORS_MAX.to_string()),
        ("entries of a descriptor", request::ENTRIES_MAX.to_string()),
        ("bytes of a key or of the domain", bytes(request::KEY_BYTES_MAX)),
        ("bytes of a value", bytes(request::VALUE_BYTES_MAX)),
        ("headers of a call", bytes(limits::HEADER_LIST_BYTES_MAX as usize)),
        ("headers of an HTTP/1 request", bytes(server::HEADERS_BYTES_MAX)),
        ("number of headers of an HTTP/1 request", server::HEADERS_MAX.to_string()),
        ("calls under way on a connection", limits::STREAMS_MAX.to_string()),
        ("watches on a connection", limits::WATCHES_MAX.to_string()),
        ("bytes of large unfinished requests", bytes(drain::UNFINISHED_BYTES_MAX)),
        ("of these, on a connection", bytes(drain::UNFINISHED_BYTES_SHARE)),
        ("time of a call, from its first byte to the last of its answer", seconds(drain::CALL_MAX)),
        ("HTTP connections", server::CONNECTIONS_MAX.to_string()),
        ("debug connections", server::DEBUG_CONNECTIONS_MAX.to_string()),
        ("handshake and opening of a connection", seconds(limits::OPENING_MAX)),
        ("first call on a connection", seconds(limits::FIRST_CALL_MAX)),
        ("first byte on an HTTP connection", seconds(server::OPENING_MAX)),
        ("answer to our ping on a silent connection", seconds(limits::KEEPALIVE_TIMEOUT)),
        ("headers of an HTTP/1 request, and between two", seconds(server::HEADERS_TIMEOUT)),
        ("body of a `/json` request", seconds(json::BODY_TIMEOUT)),
        ("frames that ask nothing, in 5 s", limits::ALLOWANCE.to_string()),
        ("message of a call, to its last byte", seconds(limits::MESSAGE_MAX)),
        ("message of a health check or of reflection", bytes(limits::SMALL_MESSAGE_BYTES_MAX)),
        ("of these, whatever the others have", bytes(drain::UNFINISHED_BYTES_OWN)),
        ("answers with all rules in them, at a time", limits::LARGE_ANSWERS_MAX.to_string()),
        ("read from a connection in one turn", bytes(limits::READ_BYTES_MAX)),
        ("streams reset before they were looked at", limits::PENDING_RESETS_MAX.to_string()),
        ("unread bytes of a connection", bytes(limits::WINDOW_BYTES as usize)),
        ("requests waiting for a connection to Redis", node::QUEUE_MAX.to_string()),
        ("texts of `/metrics` on their way", metrics::TEXTS_MAX.to_string()),
        ("label sets of a rule by value", telemetry::SERIES_PER_RULE.to_string()),
        ("label sets of all rules", telemetry::LABEL_SETS_MAX.to_string()),
        ("bytes of a value in a label", bytes(telemetry::LABEL_BYTES_MAX)),
        ("rules, in all files", read::RULES_MAX.to_string()),
        ("files of rules", sources::FILES_MAX.to_string()),
        ("bytes of a file of rules", bytes(yaml::BYTES_MAX)),
        ("bytes of all files of rules", bytes(sources::BYTES_MAX)),
        ("depth of YAML", yaml::DEPTH_MAX.to_string()),
        ("values in a file, with aliases written out", yaml::NODES_MAX.to_string()),
        ("pairs that merge keys write out in a file", yaml::MERGED_MAX.to_string()),
    ];
    let readme = readme();
    let rows = rows.map(|(what, limit)| format!("| {what} | {limit} |"));
    let missing: Vec<String> = rows.into_iter().filter(|row| !readme.contains(row)).collect();
    none(&missing, "the README has no such row");
    assert_eq!(drain::SLICE.as_secs(), 5);
}
