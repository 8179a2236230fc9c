//! Where rules are kept: a file, or the files of a directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

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
pub fn read_sources(path: &Path) -> Result<Vec<Source>, ReadError> {
    if !fs::metadata(path).map_err(ReadError::of(path))?.is_dir() {
        return Ok(vec![read_source(path)?]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(ReadError::of(path))? {
        let file = entry.map_err(ReadError::of(path))?.path();
        // A link to nowhere is refused rather than passed over: rules that vanish are worse than rules that stay.
        if is_rules_file(&file) && !fs::metadata(&file).map_err(ReadError::of(&file))?.is_dir() {
            files.push(file);
        }
    }
    files.sort();
    files.iter().map(|file| read_source(file)).collect()
}

fn is_rules_file(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !is_hidden && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

fn read_source(path: &Path) -> Result<Source, ReadError> {
    let length = fs::metadata(path).map_err(ReadError::of(path))?.len();
    if length > super::yaml::BYTES_MAX as u64 {
        let reason = format!("the file has {length} bytes, at most {} (32 MiB) are read", super::yaml::BYTES_MAX);
        return Err(ReadError { path: path.to_owned(), reason: io::Error::new(io::ErrorKind::FileTooLarge, reason) });
    }
    let text = fs::read_to_string(path).map_err(ReadError::of(path))?;
    Ok(Source { name: path.display().to_string(), text })
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

        fs::write(directory.path().join("binary.yaml"), [0xff, 0xfe, 0x00]).unwrap();
        let message = read_sources(directory.path()).unwrap_err().to_string();
        assert!(message.contains("binary.yaml") && message.contains("UTF-8"), "{message}");
    }

    #[test]
    fn an_empty_directory_has_no_sources() {
        assert!(read_sources(tempfile::tempdir().unwrap().path()).unwrap().is_empty());
    }
}
