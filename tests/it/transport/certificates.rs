//! Certificates for a test, made by the `openssl` command.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// A CA of its own and what it signed: `<name>.crt` and `<name>.key` beside `ca.crt`.
pub struct Authority {
    dir: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let authority = Self { dir: tempfile::tempdir().expect("there is room") };
        let subject =
            ["-x509", "-subj", "/CN=test ca", "-days", "30", "-addext", "keyUsage=critical,keyCertSign,cRLSign"];
        authority.openssl(&[&["req"], &subject[..], &NEW_KEY, &["-keyout", "ca.key", "-out", "ca.crt"]].concat());
        authority
    }

    /// Signs a certificate for this long.
    pub fn sign(&self, name: &str, alternative_name: &str, days: u32) {
        let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.crt"));
        let subject = format!("/CN={name}");
        self.openssl(&[&["req", "-subj", &subject, "-keyout", &key, "-out", &request], &NEW_KEY[..]].concat());
        let extensions = format!("{name}.ext");
        std::fs::write(self.path(&extensions), format!("subjectAltName={alternative_name}\n")).expect("can be written");
        let days = days.to_string();
        let signing = ["x509", "-req", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", &days];
        self.openssl(&[&signing[..], &["-in", &request, "-out", &certificate, "-extfile", &extensions]].concat());
    }

    /// Signs one that ended years ago.
    pub fn sign_expired(&self, name: &str, alternative_name: &str) {
        self.sign(name, alternative_name, 1);
        let (request, certificate, extensions) = (format!("{name}.csr"), format!("{name}.crt"), format!("{name}.ext"));
        let signing = ["2020-01-01", "openssl", "x509", "-req", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", "1"];
        let files = ["-in", &request, "-out", &certificate, "-extfile", &extensions];
        self.run("faketime", &[&signing[..], &files[..]].concat());
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub fn read(&self, file: &str) -> String {
        read(&self.path(file))
    }

    /// Puts one file in the place of another at once, as cert-manager and `mv` do.
    pub fn replace(&self, file: &str, by: &str) {
        let staged = self.path("staged");
        std::fs::copy(self.path(by), &staged).expect("can be copied");
        std::fs::rename(staged, self.path(file)).expect("can be renamed");
    }

    fn openssl(&self, arguments: &[&str]) {
        self.run("openssl", arguments);
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = Command::new(program).args(arguments).current_dir(self.dir.path()).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}: tests/run installs what tests need"));
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
