//! A network of its own for a server, behind a link that can lose every packet, both ways and without a word. That takes the
//! right to make network namespaces.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use tempfile::TempDir;

use crate::servers::Server;

/// Nobody has it: who is sent here never hears of it.
const NOBODY: &str = "02:00:00:00:00:99";

pub struct Island {
    name: String,
    here: Shore,
    there: Shore,
    dir: TempDir,
}

/// One end of the link.
struct Shore {
    device: String,
    address: String,
    mac: String,
}

impl Island {
    /// None where it is not allowed.
    pub fn make() -> Option<Self> {
        // The kernel takes its time to forget the one before.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let id = std::process::id().wrapping_add(MADE.fetch_add(1, Ordering::Relaxed)) % 1_000_000;
        let (name, net) = (format!("sluice{id}"), id % 250);
        let shore = |end: &str, host: u8| Shore {
            device: format!("sl{id}{end}"),
            address: format!("169.254.{net}.{host}"),
            mac: String::new(),
        };
        let dir = TempDir::new().expect("there is room for a directory");
        ip(&["netns", "add", &name])?;
        // From here on it is taken away again by being dropped.
        let mut island = Self { name, here: shore("a", 1), there: shore("b", 2), dir };
        let (here, there) = (&island.here, &island.there);
        ip(&["link", "add", &here.device, "type", "veth", "peer", "name", &there.device, "netns", &island.name])?;
        ip(&["addr", "add", &format!("{}/30", here.address), "dev", &here.device])?;
        ip(&["link", "set", &here.device, "up"])?;
        ip(&["-n", &island.name, "addr", "add", &format!("{}/30", there.address), "dev", &there.device])?;
        ip(&["-n", &island.name, "link", "set", &there.device, "up"])?;
        ip(&["-n", &island.name, "link", "set", "lo", "up"])?;
        let (here, there) =
            (mac(&["link", "show", &here.device])?, mac(&["-n", &island.name, "link", "show", &there.device])?);
        (island.here.mac, island.there.mac) = (here, there);
        island.set_lossy(false);
        Some(island)
    }

    /// A server that can be reached from here by [`Island::address`] and not otherwise.
    pub fn start(&self, binary: &str) -> Server {
        let path = self.dir.path().join(binary);
        let text = format!("#!/bin/sh\nexec ip netns exec {} {binary} \"$@\"\n", self.name);
        fs::write(&path, text).expect("a script can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be made to run");
        Server::start_with(&path.display().to_string(), &["--bind", "0.0.0.0", "--protected-mode", "no"])
    }

    pub fn address(&self, server: &Server) -> String {
        format!("{}:{}", self.there.address, server.port())
    }

    /// Whether every packet is lost from now on.
    pub fn set_lossy(&self, lossy: bool) {
        let to = |shore: &Shore| if lossy { NOBODY.to_owned() } else { shore.mac.clone() };
        let (here, there) = (&self.here, &self.there);
        let neighbour = ["neigh", "replace"];
        let ends = [&there.address, "lladdr", &to(there), "dev", &here.device, "nud", "permanent"];
        ip(&[&neighbour[..], &ends[..]].concat()).expect("the link can be changed");
        let ends = [&here.address, "lladdr", &to(here), "dev", &there.device, "nud", "permanent"];
        ip(&[&["-n", &self.name], &neighbour[..], &ends[..]].concat()).expect("the link can be changed");
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Option<String> {
    let output = Command::new("ip").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn mac(arguments: &[&str]) -> Option<String> {
    let shown = ip(arguments)?;
    let mut words = shown.split_whitespace().skip_while(|word| *word != "link/ether");
    words.nth(1).map(str::to_owned)
}
