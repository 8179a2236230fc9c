//! Tells when files may have changed, and whether somebody is in the midst of writing one. Never says what changed: whoever is
//! told reads everything anew.
//!
//! Directories are watched, never files: an editor replaces a file by renaming another over it, and Kubernetes swaps a
//! symbolic link beside it; a watch on the file itself would see the first change and none after it. Where the path leads
//! through symbolic links, the directory of each of them is watched too; where it leads nowhere, the place where it ends.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, ModifyKind, RenameMode},
};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::sources::{self, FILES_MAX};

/// As many as the system itself follows.
const LINKS_MAX: usize = 40;

pub struct Watch {
    path: PathBuf,
    /// `None` where the system has no watches left: polling has to do then.
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    events: mpsc::Receiver<()>,
    writing: Writing,
}

impl Watch {
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let (sender, events) = mpsc::channel(1);
        let writing = Writing::default();
        let told = {
            let writing = writing.clone();
            move |event: notify::Result<Event>| {
                let is_change = event.as_ref().map_or(true, is_change);
                if let Ok(event) = event {
                    writing.note(event);
                }
                if is_change {
                    // One waiting event is as good as many: a full channel already means that something changed.
                    let _ = sender.try_send(());
                }
            }
        };
        let watcher = notify::recommended_watcher(told)
            .inspect_err(|error| warn!(%error, "cannot watch files, polling them instead"))
            .ok();
        let mut watch = Self { path: path.to_owned(), watcher, watched: BTreeSet::new(), events, writing };
        watch.follow();
        watch
    }

    /// Watches what the path leads through now. To be called before every read, because links may lead elsewhere and what
    /// changes after the read must be seen.
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
    pub fn drain(&mut self) {
        let _ = self.events.try_recv();
    }

    /// How long the files still have to be left alone until each has rested for `quiet`. Zero is at rest.
    pub fn rests_in(&self, quiet: Duration) -> Duration {
        if self.writing.is_any_of(&self.path) { quiet } else { sources::rests_in(&self.path, quiet) }
    }

    /// Forgets who is writing: they have been waited for long enough.
    pub fn forget_writers(&self) {
        self.writing.clear();
    }
}

/// Whether an event can mean other content. Reading is none: a watch that told of it would have the rules read for ever,
/// each time because of the time before.
fn is_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

/// Files that were modified by somebody who has not closed them yet.
#[derive(Clone, Default)]
struct Writing(Arc<Mutex<BTreeSet<PathBuf>>>);

impl Writing {
    fn note(&self, event: Event) {
        let mut writing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for path in event.paths {
            match event.kind {
                EventKind::Modify(ModifyKind::Data(_)) if writing.len() < FILES_MAX => {
                    writing.insert(path);
                }
                EventKind::Access(AccessKind::Close(AccessMode::Write))
                | EventKind::Remove(_)
                | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => {
                    writing.remove(&path);
                }
                _ => {}
            }
        }
    }

    /// Other files in the same directories, such as a log, are nobody's business.
    fn is_any_of(&self, path: &Path) -> bool {
        let writing = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_written = |file: PathBuf| file.canonicalize().is_ok_and(|file| writing.contains(&file));
        !writing.is_empty() && sources::files(path).is_ok_and(|files| files.into_iter().any(is_written))
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The directories in which a change can change what is read at a path: of it and of every link on the way to it and to the
/// files in it. They are named without links, so that none is there twice.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut directories = BTreeSet::new();
    let Some(end) = walk(path, &mut directories) else { return directories };
    if end.is_dir() {
        for file in sources::links(&end) {
            walk(&file, &mut directories);
        }
        directories.insert(end);
    }
    directories
}

/// Follows a path link by link, and notes the directory of each link and that of the end. `None` where it leads nowhere: the
/// last directory on the way is noted then, because there it has to go on.
fn walk(path: &Path, directories: &mut BTreeSet<PathBuf>) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    let mut rest: Vec<PathBuf> = steps(&absolute);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(step) = rest.pop() {
        if step == Path::new("..") {
            at.pop();
            continue;
        }
        let next = at.join(&step);
        let Ok(found) = fs::symlink_metadata(&next) else {
            directories.insert(at);
            return None;
        };
        if found.is_symlink() {
            directories.insert(at.clone());
            links += 1;
            let target = fs::read_link(&next).ok().filter(|_| links <= LINKS_MAX)?;
            rest.extend(steps(&target));
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
        } else {
            at = next;
        }
    }
    directories.insert(if at.is_dir() { at.clone() } else { at.parent()?.to_owned() });
    Some(at)
}

/// The steps of a path, the first one last.
fn steps(path: &Path) -> Vec<PathBuf> {
    let names = path.components().filter(|step| matches!(step, Component::Normal(_) | Component::ParentDir));
    let mut steps: Vec<PathBuf> = names.map(|step| PathBuf::from(step.as_os_str())).collect();
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The directories of a path in a tree, named from its root.
    fn watched(root: &Path, path: &str) -> Vec<String> {
        let root = root.canonicalize().unwrap();
        let name = |directory: &PathBuf| directory.strip_prefix(&root).unwrap().display().to_string();
        directories(&root.join(path)).iter().map(name).collect()
    }

    #[test]
    fn the_directory_of_every_link_on_the_way_is_watched() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for directory in ["a", "b", "c/v1/rules", "d"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        symlink("../b/live", at("a/current")).unwrap();
        symlink(at("c/v1").canonicalize().unwrap(), at("b/live")).unwrap();
        fs::write(at("d/real.conf"), "").unwrap();
        symlink("../../../d/real.conf", at("c/v1/rules/rules.yaml")).unwrap();
        assert_eq!(watched(root.path(), "a/current/rules"), ["a", "b", "c/v1/rules", "d"]);
        assert_eq!(watched(root.path(), "a/current/rules/rules.yaml"), ["a", "b", "c/v1/rules", "d"]);
        assert_eq!(watched(root.path(), "d/real.conf"), ["d"]);
    }

    #[test]
    fn a_path_that_leads_nowhere_is_watched_where_it_ends() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("a")).unwrap();
        assert_eq!(watched(root.path(), "a/none/nothing/rules.yaml"), ["a"]);
        symlink("none/here", at("a/dangling.yaml")).unwrap();
        assert_eq!(watched(root.path(), "a"), ["a"]);
        symlink("two", at("a/one.yaml")).unwrap();
        symlink("one.yaml", at("a/two")).unwrap();
        assert_eq!(watched(root.path(), "a/one.yaml"), ["a"], "a ring of links ends");
    }

    #[test]
    fn reading_is_no_change_and_the_end_of_writing_is() {
        use notify::event::{CreateKind, DataChange};
        let is_change = |kind| is_change(&Event::new(kind));
        assert!(!is_change(EventKind::Access(AccessKind::Open(AccessMode::Any))));
        assert!(!is_change(EventKind::Access(AccessKind::Close(AccessMode::Read))));
        for kind in [
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
            EventKind::Modify(ModifyKind::Data(DataChange::Any)),
            EventKind::Create(CreateKind::File),
            EventKind::Other,
        ] {
            assert!(is_change(kind), "{kind:?}");
        }
    }
}
