//! Where callers come in: a TCP port or a unix socket. Knows nothing of TLS, HTTP or calls.

use std::{
    fmt,
    io::{self, ErrorKind, IoSlice},
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
};

use socket2::{Domain, SockAddr, Socket as RawSocket, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tracing::{debug, info};

const BACKLOG: i32 = 1024;

/// A unix socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSettings {
    /// One that begins with `@` is a name and no file: Linux's abstract sockets.
    pub path: PathBuf,
    /// Who may connect, as `chmod` writes it. Connecting takes the right to write.
    pub mode: u32,
}

/// Why a unix socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum UnixBindError {
    #[error("{} exists and is no socket: name another path, or remove it", .0.display())]
    NoSocket(PathBuf),
    #[error("another process listens on {}", .0.display())]
    InUse(PathBuf),
    #[error("cannot listen on {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Binds a TCP port. `::` takes IPv4 callers too, whatever the system's default is.
pub fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // A restart must not wait for the connections of the process before.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The file of a unix socket. Removed with this, unless another process has put its own there.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode; none for a name that is no file.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    fn identity(path: &Path) -> Option<(u64, u64)> {
        std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && Self::identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    pub async fn bind_unix(settings: &UnixSettings) -> Result<Self, UnixBindError> {
        let path = &settings.path;
        let failed = |source| UnixBindError::Io { path: path.clone(), source };
        if let Some(name) = path.to_str().and_then(|path| path.strip_prefix('@')) {
            let listener = UnixListener::bind(format!("\0{name}")).map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => UnixBindError::InUse(path.clone()),
                _ => failed(error),
            })?;
            return Ok(Self::Unix(listener, SocketFile { path: path.clone(), identity: None }));
        }
        remove_stale(path).await?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        let file = SocketFile { path: path.clone(), identity: SocketFile::identity(path) };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(settings.mode)).map_err(failed)?;
        Ok(Self::Unix(listener, file))
    }

    pub async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Without it answers only come later.
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%error, "cannot set TCP_NODELAY");
                }
                Ok(Socket::Tcp(stream))
            }
            Self::Unix(listener, _) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

/// The address that was really bound.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => listener.local_addr().map_err(|_| fmt::Error)?.fmt(f),
            Self::Unix(_, file) => write!(f, "unix:{}", file.path.display()),
        }
    }
}

/// Removes the socket of a process that is gone. Anything else at that path stays, and is an error.
async fn remove_stale(path: &Path) -> Result<(), UnixBindError> {
    let failed = |source| UnixBindError::Io { path: path.to_owned(), source };
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !found.file_type().is_socket() {
        return Err(UnixBindError::NoSocket(path.to_owned()));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            info!(path = %path.display(), "removing a socket that nobody listens on");
            std::fs::remove_file(path).map_err(failed)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // A listener that is too busy to take one more says that it would block.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(UnixBindError::InUse(path.to_owned())),
        Err(error) => Err(failed(error)),
        Ok(_) => Err(UnixBindError::InUse(path.to_owned())),
    }
}

/// A connection of either kind.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Calls the same method on whichever it is.
macro_rules! on_either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_either!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_either!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_either!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        on_either!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &Path) -> UnixSettings {
        UnixSettings { path: path.to_owned(), mode: 0o640 }
    }

    #[tokio::test]
    async fn a_socket_has_the_mode_asked_for_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let listener = Listener::bind_unix(&at(&path)).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(listener.to_string(), format!("unix:{}", path.display()));
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_is_taken_over_only_when_nobody_listens_on_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let first = UnixListener::bind(&path).unwrap();
        assert!(matches!(Listener::bind_unix(&at(&path)).await, Err(UnixBindError::InUse(_))));
        drop(first);
        assert!(path.exists(), "tokio leaves the file behind");
        Listener::bind_unix(&at(&path)).await.unwrap();
    }

    #[tokio::test]
    async fn a_path_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert!(matches!(Listener::bind_unix(&at(&path)).await, Err(UnixBindError::NoSocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    }

    #[tokio::test]
    async fn a_socket_that_another_process_put_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let ours = Listener::bind_unix(&at(&path)).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let theirs = Listener::bind_unix(&at(&path)).await.unwrap();
        drop(ours);
        assert!(path.exists());
        drop(theirs);
    }
}
