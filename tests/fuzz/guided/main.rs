//! One target, which `FUZZ_TARGET` names, under libFuzzer.

#![no_main]

#[path = "../targets.rs"]
mod targets;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use targets::{TARGETS, Target};

static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    TARGETS.iter().find(|(known, _)| *known == name).expect("FUZZ_TARGET names a target").1
});

fuzz_target!(|bytes: &[u8]| CHOSEN(bytes));
