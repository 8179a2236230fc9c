//! The wire messages, generated from `proto/`.

#![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/protos.rs"));

/// All of `proto/` as descriptors, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
