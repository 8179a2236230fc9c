//! Tells when files may have changed. Never says what: whoever is told reads everything anew.
//!
//! Directories are watched, never files: an editor replaces a file by renaming another over it, and Kubernetes swaps a
//! symbolic link beside it; a watch on the file itself would see the first change and none after it. Where the path leads
//! through symbolic links, the directories of those links are watched too.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tracing::{debug, warn};

pub struct Watch {
    path: PathBuf,
    /// `None` where the system has no watches left: polling has to do then.
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    events: mpsc::Receiver<()>,
}

impl Watch {
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let (sender, events) = mpsc::channel(1);
        // One waiting event is as good as many: a full channel already means that something changed.
        let told = move |_| {
            let _ = sender.try_send(());
        };
        let watcher = notify::recommended_watcher(told)
            .inspect_err(|error| warn!(%error, "cannot watch files, polling them instead"))
            .ok();
        let mut watch = Self { path: path.to_owned(), watcher, watched: BTreeSet::new(), events };
        watch.follow();
        watch
    }

    /// Watches what the path leads through now. To be called after every change, because links may lead elsewhere.
    pub fn follow(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted = directories(&self.path);
        for gone in self.watched.difference(&wanted) {
            let _ = watcher.unwatch(gone);
        }
        // A directory that was removed and made anew has lost its watch: every one is set again.
        self.watched = wanted
            .into_iter()
            .filter(|directory| match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => true,
                Err(error) => {
                    debug!(%error, directory = %directory.display(), "cannot watch a directory");
                    false
                }
            })
            .collect();
    }

    /// Waits for the next sign of a change.
    pub async fn changed(&mut self) {
        if self.events.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Forgets the signs that have come meanwhile.
    pub fn drain(&mut self) -> bool {
        self.events.try_recv().is_ok()
    }
}

/// The directory itself or that of the file, and those of all links on the way.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut directories = BTreeSet::new();
    let parent = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    if path.is_dir() {
        directories.insert(path.to_owned());
    } else {
        directories.insert(parent(path));
    }
    for ancestor in path.ancestors().filter(|ancestor| ancestor.is_symlink()) {
        directories.insert(parent(ancestor));
    }
    if let Ok(target) = path.canonicalize() {
        directories.insert(if target.is_dir() { target } else { parent(&target) });
    }
    directories.into_iter().filter(|directory| directory.is_dir()).collect()
}
