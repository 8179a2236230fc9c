//! The `sluice` program.

fn main() {}
