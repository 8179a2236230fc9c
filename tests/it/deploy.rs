//! The files in `deploy/`: each is run, or handed to the program that will read it. What those programs do not look at is checked by
//! the scripts in `tests/deploy`.
//!
//! Not run here: a cluster, a mesh, a container engine.

mod documents;
mod live;
mod monitoring;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::harness::sluice;

const OVERLAYS: [&str; 3] = ["standalone", "standalone-monitored", "sidecar"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A program that `tests/run` puts below `target/`.
#[track_caller]
fn installed(path: &str) -> PathBuf {
    let path = root().join("target").join(path);
    assert!(path.exists(), "{} is not there: tests/run installs what tests need", path.display());
    path
}

fn envoy() -> PathBuf {
    std::env::var_os("ENVOY_BIN").map_or_else(|| installed("envoy/bin/envoy"), PathBuf::from)
}

/// One of the scripts in `tests/deploy`.
fn script(name: &str) -> Command {
    let mut command = Command::new(installed("deploy-checks/bin/python"));
    command.arg(root().join("tests/deploy").join(name)).current_dir(root());
    command
}

fn run(command: &mut Command) -> Output {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .output()
        .unwrap_or_else(|error| panic!("{name} cannot be run ({error}): tests/run installs what tests need"))
}

/// What it printed, with one space wherever it has any: Envoy's own messages vary in that on purpose.
fn said(output: &Output) -> String {
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs it, and gives what it printed.
#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}:\n{}", said(&output));
    String::from_utf8(output.stdout).expect("it prints text")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Files of one kind in a directory of the repository.
fn files(directory: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(directory)).unwrap_or_else(|error| panic!("{directory}: {error}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|its| its == extension));
    paths.sort();
    paths
}

fn envoy_filters(paths: &[PathBuf]) -> Output {
    let rules = root().join("deploy/kubernetes/base/rules/edge.yaml");
    run(script("envoy_filters.py").arg(envoy()).arg(rules).args(paths))
}
/// The names of all settings, from the help text.
fn settings() -> Vec<String> {
    let help = succeed(sluice().args(["serve", "--help"]));
    let words: Vec<&str> = help.split_whitespace().collect();
    let names = words.windows(2).filter(|pair| pair[0] == "[env:");
    let names = names.map(|pair| pair[1].trim_end_matches(']').to_owned());
    names.collect()
}

/// What kustomize makes of an overlay.
struct Built {
    dir: TempDir,
    manifests: PathBuf,
}

impl Built {
    fn overlay(name: &str) -> Self {
        let dir = tempfile::tempdir().expect("there is room for a directory");
        let overlay = root().join("deploy/kubernetes/overlays").join(name);
        let text = succeed(Command::new(installed("kustomize/usr/bin/kustomize")).arg("build").arg(overlay));
        let manifests = dir.path().join("manifests.yaml");
        fs::write(&manifests, text).expect("a file can be written");
        fs::create_dir(dir.path().join("rules")).expect("a directory can be made");
        Self { dir, manifests }
    }

    fn rules(&self) -> PathBuf {
        self.dir.path().join("rules")
    }

    fn check(&self) -> Output {
        run(script("manifests.py").arg(&self.manifests).arg(self.rules()))
    }

    /// The settings that sluice is given, once everything was found to be right.
    #[track_caller]
    fn settings(&self) -> Vec<(String, String)> {
        let output = self.check();
        assert!(output.status.success(), "{}", said(&output));
        let lines = String::from_utf8(output.stdout).expect("settings are text");
        let pairs = lines.lines().map(|line| line.split_once('=').expect("a setting has a value"));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

#[test]
fn envoy_accepts_every_envoy_filter_and_every_descriptor_meets_a_rule() {
    let paths = files("deploy/istio", "yaml");
    assert_eq!(paths.len(), 4, "gateway and sidecar, each with a service and with a socket: {paths:?}");
    let output = envoy_filters(&paths);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_mistake_in_an_envoy_filter_is_found() {
    let dir = tempfile::tempdir().expect("there is room for a directory");
    let good = read("deploy/istio/gateway.yaml");
    for (from, to, complaint) in [
        ("failure_mode_deny:", "failure_mode_denied:", "no such field: 'failure_mode_denied'"),
        ("vh_rate_limits: INCLUDE", "vh_rate_limits: ALL", "unknown enum value: 'ALL'"),
        ("header_name: x-api-key", "header: x-api-key", "no such field: 'header'"),
        ("applyTo: VIRTUAL_HOST", "applyto: VIRTUAL_HOST", "no field ['applyto']"),
        ("context: GATEWAY", "context: GATEWAYS", "the context 'GATEWAYS'"),
        ("outbound|8081||sluice", "outbound|8081|sluice", "no patch adds the cluster"),
        ("descriptor_key: api_key", "descriptor_key: apikey", "no rule limits [('apikey', None)]"),
        ("domain: edge", "domain: egde", "asks for the domains ['egde']"),
    ] {
        assert!(good.contains(from), "{from} is no longer in gateway.yaml");
        let path = dir.path().join("bad.yaml");
        fs::write(&path, good.replace(from, to)).expect("a file can be written");
        let output = envoy_filters(std::slice::from_ref(&path));
        assert_eq!(output.status.code(), Some(1), "{to} was accepted");
        assert!(said(&output).contains(complaint), "{to}: {}", said(&output));
    }
}

#[test]
fn kustomize_builds_every_overlay_and_the_objects_fit_the_schemas_and_each_other() {
    let directories = fs::read_dir(root().join("deploy/kubernetes/overlays")).expect("there are overlays");
    assert_eq!(directories.count(), OVERLAYS.len(), "an overlay is not checked here");
    let known = settings();
    for name in OVERLAYS {
        let built = Built::overlay(name);
        for (setting, _) in built.settings() {
            assert!(known.contains(&setting), "{name}: sluice has no setting {setting}");
        }
        let said = succeed(sluice().arg("check").arg(built.rules()));
        assert!(said.starts_with("ok") && said.contains("0 warnings"), "{name}: {said}");
        let image = format!("registry.example.com/sluice:{}", env!("CARGO_PKG_VERSION"));
        let manifests = fs::read_to_string(&built.manifests).expect("it was just written");
        assert!(manifests.contains(&image), "{name}: does not use {image}");
    }
}

#[test]
fn a_mistake_in_a_manifest_is_found() {
    let built = Built::overlay("standalone-monitored");
    let good = fs::read_to_string(&built.manifests).expect("it was just written");
    for (from, to, complaint) in [
        ("livenessProbe:", "livenesProbe:", "livenesProbe"),
        ("minReplicas: 2", "minReplicas: two", "'two' is not of type"),
        ("minReplicas: 2", "minReplicas: 1", "one replica cannot be replaced"),
        ("port: http-metrics", "port: metrics", "ServiceMonitor sluice: scrapes no port"),
        ("scrapeTimeout:", "scrape_timeout:", "ServiceMonitor sluice: has unknown fields"),
        ("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may write to its image"),
        ("terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 20", "may drain for 25 s"),
        ("name: grpc-ratelimit", "name: ratelimit", "no Service has a grpc- port"),
        ("targetPort: grpc", "targetPort: rpc", "no pod has the port rpc"),
        (
            "- configMap:\n          name: sluice-rules",
            "- configMap:\n          name: rules",
            "there is no ConfigMap rules",
        ),
    ] {
        assert!(good.contains(from), "{from} is no longer in what kustomize builds:\n{good}");
        fs::write(&built.manifests, good.replace(from, to)).expect("a file can be written");
        let output = built.check();
        assert!(!output.status.success(), "{to} was accepted");
        assert!(said(&output).contains(complaint), "{to}: {}", said(&output));
    }
}

#[test]
fn envoy_accepts_the_bootstraps_of_the_sidecar_and_of_compose() {
    for path in ["deploy/kubernetes/overlays/sidecar/envoy.yaml", "deploy/docker/envoy.yaml"] {
        succeed(Command::new(envoy()).args(["--mode", "validate", "-l", "error", "-c"]).arg(root().join(path)));
    }
}

#[test]
fn the_dockerfile_is_clean_and_every_path_of_it_and_of_compose_exists() {
    let dockerfile = root().join("deploy/docker/Dockerfile");
    succeed(Command::new(installed("deploy-checks/bin/hadolint")).arg("--no-color").arg(dockerfile));
    let known = settings();
    for setting in succeed(script("docker.py").arg(".")).lines() {
        assert!(known.iter().any(|name| name == setting), "compose: sluice has no setting {setting}");
    }
}

#[test]
fn the_first_layer_of_the_image_can_fetch_with_the_manifest_alone() {
    let dir = tempfile::tempdir().expect("there is room for a directory");
    for name in ["Cargo.toml", "Cargo.lock"] {
        fs::copy(root().join(name), dir.path().join(name)).expect("it can be copied");
    }
    let dockerfile = read("deploy/docker/Dockerfile");
    let step = dockerfile.split("\nRUN ").nth(1).expect("there is a step").split("\n\n").next().expect("it ends");
    assert!(step.contains("cargo fetch --locked"), "{step}");
    // tests/run has fetched it already.
    succeed(Command::new("sh").args(["-c", step]).env("CARGO_NET_OFFLINE", "true").current_dir(dir.path()));
}
