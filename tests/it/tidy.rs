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
        let is_test = path.starts_with(root().join("tests")) || path.to_string_lossy().contains("tests");
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
