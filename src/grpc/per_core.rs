//! For measurements only: one runtime and one listener for each core, beside the one pool of threads that is shipped.
//! `SLUICE_RUNTIME=per-core` asks for it, in programs that are built with the feature `bench`.

use std::{env, io, net::SocketAddr, thread};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{
    listen::Listener,
    server::{Door, serve},
};

#[must_use]
pub fn is_wanted() -> bool {
    env::var("SLUICE_RUNTIME").is_ok_and(|runtime| runtime == "per-core")
}

/// Serves on the port of a listener, which is given up for it.
pub fn start(listener: Listener, door: &Door, stop: &CancellationToken) -> io::Result<JoinHandle<()>> {
    let Listener::Tcp(listener) = listener else {
        return Ok(tokio::spawn(serve(listener, door.clone(), stop.clone())));
    };
    let address = listener.local_addr()?;
    drop(listener);
    let cores = thread::available_parallelism()?.get();
    let sockets = (0..cores).map(|_| bind(address)).collect::<io::Result<Vec<_>>>()?;
    let threads = sockets.into_iter().map(|socket| {
        let (door, stop) = (door.clone(), stop.clone());
        thread::Builder::new().name("core".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                serve(Listener::Tcp(TcpListener::from_std(socket)?), door, stop).await;
                io::Result::Ok(())
            })
        })
    });
    let threads = threads.collect::<io::Result<Vec<_>>>()?;
    Ok(tokio::task::spawn_blocking(|| {
        for thread in threads {
            let _ = thread.join();
        }
    }))
}

fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(1_024)?;
    Ok(socket.into())
}
