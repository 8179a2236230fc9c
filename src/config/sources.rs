//! Where rules are kept: a file, or the files of a directory.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Files of one directory.
pub const FILES_MAX: usize = 1_000;
/// Of all files together. A hundred thousand rules have a tenth.
pub const BYTES_MAX: usize = 64 << 20;

/// How often, and how long apart, files are read again that changed meanwhile.
const TRIES: usize = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(25);

const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// A text and the name by which messages call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub name: String,
    pub text: String,
}

/// Rules that could not be read at all.
#[derive(Debug, thiserror::Error)]
#[error("cannot read rules from {}: {reason}", path.display())]
pub struct ReadError {
    pub path: PathBuf,
    pub reason: io::Error,
}

impl ReadError {
    fn of(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |reason| Self { path: path.to_owned(), reason }
    }
}

/// The file at a path, or every rules file in the directory there, in the order of their names. Links are followed,
/// because that is how a mounted `ConfigMap` looks; directories inside are not, for the same reason.
///
/// What changes while it is read is read again: neither half of a file nor the files of two sets are rules. Blocks for at most
/// half a second more than it takes to read.
pub fn read_sources(path: &Path) -> Result<Vec<Source>, ReadError> {
    read_at_rest(path, || {})
}

/// As [`read_sources`], and from a pipe as well, once: for who is asked to look at rules, such as those that another program writes.
pub fn read_sources_or_pipe(path: &Path) -> Result<Vec<Source>, ReadError> {
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Ok(vec![read_text(path)?]);
    }
    read_sources(path)
}

fn read_at_rest(path: &Path, mut meanwhile: impl FnMut()) -> Result<Vec<Source>, ReadError> {
    for _ in 0..TRIES {
        let before = looks(path);
        let sources = read_once(path);
        meanwhile();
        if looks(path) == before {
            return sources;
        }
        thread::sleep(BETWEEN_TRIES);
    }
    let reason = io::Error::new(io::ErrorKind::ResourceBusy, "it changes all the time while it is read");
    Err(ReadError { path: path.to_owned(), reason })
}

/// How long it takes until the file that was written last has rested for `quiet`; zero if it has. A time to come says nothing
/// about rest: the clocks of a file server can be ahead.
#[must_use]
pub fn rests_in(path: &Path, quiet: Duration) -> Duration {
    let age = |file: PathBuf| fs::metadata(file).ok()?.modified().ok()?.elapsed().ok();
    let youngest = files(path).ok().and_then(|files| files.into_iter().filter_map(age).min());
    youngest.map_or(Duration::ZERO, |age| quiet.saturating_sub(age))
}

/// The rules files of a directory that are links, wherever they lead.
#[must_use]
pub fn links(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|file| is_rules_file(file) && file.is_symlink()).take(FILES_MAX).collect()
}

/// How a file looks from outside: which it is, its length, and when it was written.
type Look = (u64, u64, u64, i64, i64);

/// Of every file. None where one cannot be seen.
fn looks(path: &Path) -> Option<Vec<Look>> {
    let of = |file: &PathBuf| {
        let found = fs::metadata(file).ok()?;
        Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
    };
    files(path).ok()?.iter().map(of).collect()
}

/// The files, in the order of their names.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    if !fs::metadata(path).map_err(ReadError::of(path))?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(ReadError::of(path))? {
        let file = entry.map_err(ReadError::of(path))?.path();
        // A link to nowhere is refused rather than passed over: rules that vanish are worse than rules that stay.
        if is_rules_file(&file) && !fs::metadata(&file).map_err(ReadError::of(&file))?.is_dir() {
            files.push(file);
        }
    }
    if files.len() > FILES_MAX {
        return Err(too_large(path, format!("there are {} files, at most {FILES_MAX} are read", files.len())));
    }
    files.sort();
    Ok(files)
}

fn read_once(path: &Path) -> Result<Vec<Source>, ReadError> {
    let files = files(path)?;
    let mut sources: Vec<Source> = Vec::new();
    let mut bytes = 0;
    for file in &files {
        let source = read_source(file)?;
        bytes += source.text.len();
        if bytes > BYTES_MAX {
            return Err(too_large(path, format!("the files have more than {BYTES_MAX} bytes (64 MiB) together")));
        }
        sources.push(source);
    }
    Ok(sources)
}

fn too_large(path: &Path, reason: String) -> ReadError {
    ReadError { path: path.to_owned(), reason: io::Error::new(io::ErrorKind::FileTooLarge, reason) }
}

fn is_rules_file(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !is_hidden && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

fn read_source(path: &Path) -> Result<Source, ReadError> {
    if !fs::metadata(path).map_err(ReadError::of(path))?.is_file() {
        // A pipe or a device can be read for ever, or has nothing to say.
        let reason = io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
        return Err(ReadError { path: path.to_owned(), reason });
    }
    read_text(path)
}

fn read_text(path: &Path) -> Result<Source, ReadError> {
    const MAX: usize = super::yaml::BYTES_MAX;
    let mut bytes = Vec::new();
    // What is read is bounded, and not only what the file says of itself: it can grow meanwhile.
    let file = fs::File::open(path).map_err(ReadError::of(path))?;
    file.take(MAX as u64 + 1).read_to_end(&mut bytes).map_err(ReadError::of(path))?;
    if bytes.len() > MAX {
        let length = fs::metadata(path).map_or(0, |found| found.len()).max(bytes.len() as u64);
        return Err(too_large(path, format!("the file has {length} bytes, at most {MAX} (32 MiB) are read")));
    }
    let text =
        String::from_utf8(bytes).map_err(|error| no_text(path, error.as_bytes(), error.utf8_error().valid_up_to()))?;
    Ok(Source { name: path.display().to_string(), text })
}

/// With the place of the first byte that is wrong, because an editor may not show it.
fn no_text(path: &Path, bytes: &[u8], wrong_at: usize) -> ReadError {
    let good = &bytes[..wrong_at];
    let line = good.split(|byte| *byte == b'\n').count();
    let column = 1 + good.iter().rev().take_while(|byte| **byte != b'\n').filter(|byte| **byte & 0xc0 != 0x80).count();
    let what = if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        "it is UTF-16: save it as UTF-8".to_owned()
    } else {
        let byte = bytes.get(wrong_at).copied().unwrap_or_default();
        format!(
            "line {line}, column {column}: byte 0x{byte:02x} is no UTF-8: save the file as UTF-8, or write the letter anew"
        )
    };
    ReadError { path: path.to_owned(), reason: io::Error::new(io::ErrorKind::InvalidData, what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(sources: &[Source]) -> Vec<String> {
        let file_name = |source: &Source| Path::new(&source.name).file_name().unwrap().to_str().unwrap().to_owned();
        sources.iter().map(file_name).collect()
    }

    #[test]
    fn a_directory_gives_its_rules_files_in_the_order_of_their_names() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.yml", "a.yaml", "c.json", ".hidden.yaml", "readme.md", "yaml"] {
            fs::write(directory.path().join(name), format!("domain: {name}")).unwrap();
        }
        fs::create_dir(directory.path().join("inner.yaml")).unwrap();
        let sources = read_sources(directory.path()).unwrap();
        assert_eq!(names(&sources), ["a.yaml", "b.yml", "c.json"]);
        assert_eq!(sources[0].text, "domain: a.yaml");
        assert!(sources[0].name.starts_with(directory.path().to_str().unwrap()));
    }

    #[test]
    fn links_are_followed_as_in_a_mounted_config_map() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("..2026_01_01");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("rules.yaml"), "domain: linked").unwrap();
        std::os::unix::fs::symlink("..2026_01_01", directory.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/rules.yaml", directory.path().join("rules.yaml")).unwrap();
        let sources = read_sources(directory.path()).unwrap();
        assert_eq!(names(&sources), ["rules.yaml"]);
        assert_eq!(sources[0].text, "domain: linked");
    }

    #[test]
    fn a_file_is_read_whatever_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.conf");
        fs::write(&path, "domain: d").unwrap();
        let expected = Source { name: path.display().to_string(), text: "domain: d".to_owned() };
        assert_eq!(read_sources(&path).unwrap(), [expected]);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("none.yaml");
        let message = read_sources(&missing).unwrap_err().to_string();
        assert!(message.contains("none.yaml") && message.contains("No such file"), "{message}");

        std::os::unix::fs::symlink("nowhere", directory.path().join("dangling.yaml")).unwrap();
        let message = read_sources(directory.path()).unwrap_err().to_string();
        assert!(message.contains("dangling.yaml"), "{message}");
        fs::remove_file(directory.path().join("dangling.yaml")).unwrap();

        let latin = directory.path().join("latin.yaml");
        fs::write(&latin, b"domain: d\n# \xc3\xbc, and: \xfc\n").unwrap();
        let message = read_sources(directory.path()).unwrap_err().to_string();
        assert!(message.contains("latin.yaml: line 2, column 11: byte 0xfc is no UTF-8: save"), "{message}");
        fs::write(&latin, [0xff, 0xfe, b'd', 0]).unwrap();
        let message = read_sources(directory.path()).unwrap_err().to_string();
        assert!(message.contains("latin.yaml: it is UTF-16: save it as UTF-8"), "{message}");
    }

    #[test]
    fn a_directory_can_have_too_many_files_or_too_many_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: String, text: &str| fs::write(directory.path().join(name), text).unwrap();
        (0..FILES_MAX).for_each(|file| write(format!("{file}.yaml"), ""));
        assert_eq!(read_sources(directory.path()).unwrap().len(), FILES_MAX);
        write("one-more.yaml".to_owned(), "");
        let message = read_sources(directory.path()).unwrap_err().to_string();
        assert!(message.contains("there are 1001 files, at most 1000 are read"), "{message}");

        let directory = tempfile::tempdir().unwrap();
        let half = " ".repeat(BYTES_MAX / 2);
        for name in ["a.yaml", "b.yaml"] {
            fs::write(directory.path().join(name), &half).unwrap();
        }
        assert_eq!(read_sources(directory.path()).unwrap().len(), 2);
        fs::write(directory.path().join("c.yaml"), " ").unwrap();
        let message = read_sources(directory.path()).unwrap_err().to_string();
        assert!(message.contains("more than 67108864 bytes (64 MiB) together"), "{message}");
    }

    #[test]
    fn a_file_that_is_too_large_or_no_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let large = directory.path().join("large.yaml");
        fs::File::create(&large).unwrap().set_len(super::super::yaml::BYTES_MAX as u64 + 1).unwrap();
        let message = read_sources(&large).unwrap_err().to_string();
        assert!(message.contains("has 33554433 bytes, at most 33554432 (32 MiB) are read"), "{message}");
        let endless = directory.path().join("endless.yaml");
        std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
        let message = read_sources(&endless).unwrap_err().to_string();
        assert!(message.contains("endless.yaml: it is no regular file"), "{message}");
    }

    #[test]
    fn what_changes_while_it_is_read_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        let texts = |sources: Vec<Source>| sources.into_iter().map(|source| source.text).collect::<Vec<_>>();
        write("a.yaml", "old");
        write("b.yaml", "old");
        // Two files of a set are written one after the other, and a third is added.
        let mut changes = [("a.yaml", "newer"), ("b.yaml", "newer"), ("c.yaml", "newer")].into_iter();
        let read =
            read_at_rest(directory.path(), || changes.by_ref().take(1).for_each(|(name, text)| write(name, text)));
        assert_eq!(texts(read.unwrap()), ["newer"; 3]);

        let mut growing = String::new();
        let message = read_at_rest(&directory.path().join("a.yaml"), || {
            growing.push('x');
            write("a.yaml", &growing);
        });
        let message = message.unwrap_err().to_string();
        assert!(message.contains("a.yaml: it changes all the time while it is read"), "{message}");
    }

    #[test]
    fn an_empty_directory_has_no_sources() {
        assert!(read_sources(tempfile::tempdir().unwrap().path()).unwrap().is_empty());
    }
}
