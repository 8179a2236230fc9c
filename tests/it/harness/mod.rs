//! What every test here needs: a running server, clients for its doors, and a way to wait without sleeping.

pub mod grpc;
pub mod http;
pub mod load;
pub mod scrape;
pub mod server;
pub mod wait;

pub use server::{Server, sluice};
pub use wait::wait_until;
