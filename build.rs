//! Compiles `proto/` to Rust, and to the descriptor set that gRPC reflection serves. protox is a protobuf compiler
//! in Rust, so that a build needs no `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

const FILES: [&str; 2] = ["envoy/service/ratelimit/v3/rls.proto", "ratelimiter/v1/ratelimiter.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true);
    compiler.open_files(FILES)?;
    fs::write(out_dir.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;

    tonic_prost_build::configure().include_file("protos.rs").compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
