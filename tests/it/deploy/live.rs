//! What is deployed, started here: the settings of the manifests, and the Envoy of the compose file.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use super::{Built, envoy, read, root};
use crate::{
    harness::{Server, grpc, wait_until},
    servers::{Server as Store, VALKEY, free_port},
};

#[test]
fn the_standalone_settings_start_a_server_that_passes_its_probes_and_finds_its_store() {
    let built = Built::overlay("standalone");
    let store = Store::start_with(VALKEY, &["--requirepass", "change-me"]);
    let secret = built.dir.path().join("auth");
    fs::write(&secret, "change-me").expect("a file can be written");
    let mut builder = Server::builder();
    for (name, value) in built.settings() {
        builder = match &*name {
            // Where things are in the cluster.
            "RATE_LIMIT_CONFIG" => builder.env(&name, &built.rules().display().to_string()),
            "REDIS_AUTH_FILE" => builder.env(&name, &secret.display().to_string()),
            "REDIS_URL" => builder.env(&name, store.url().trim_start_matches("redis://")),
            "DRAIN_DELAY" => builder.env(&name, "0s"),
            _ => builder.env(&name, &value),
        };
    }
    // A busy machine is no sick store.
    let server = builder.env("REDIS_TIMEOUT", "30s").start();
    wait_until("the store answers", || server.metric("sluice_store_up") == 1.0);
    assert_eq!(server.get("/livez").status, 200);
    let health = grpc::health(server.grpc(), "ratelimit").expect("the probe's service is known");
    assert_eq!(health.as_str_name(), "SERVING");
    let mut connection = redis::Client::open(store.url().replace("redis://", "redis://:change-me@"))
        .and_then(|client| client.get_connection())
        .expect("the store can be asked");
    // Of a bucket that fills within a tenth of a second, its counter is not there for long.
    wait_until("the counter is in the store", || {
        server.ask(grpc::request("edge", &[("api_key", "a")])).expect("is answered");
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*edge*").query(&mut connection).expect("it answers");
        keys.len() == 1
    });
}

#[test]
fn under_the_name_ratelimit_with_the_settings_of_the_reference_it_serves_their_rules() {
    let dir = tempfile::tempdir().expect("there is room for a directory");
    let rules = dir.path().join("ratelimit/config");
    fs::create_dir_all(&rules).expect("a directory can be made");
    fs::write(rules.join("config.yaml"), read("config/rules/reference.yaml")).expect("a file can be written");
    let link = dir.path().join("bin");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_sluice"), &link).expect("a link can be made");
    // As in the manifests of the reference: no arguments, a pool of ten, statsd off.
    let mut command = Command::new(&link);
    command.env_clear().current_dir(dir.path()).stderr(Stdio::piped());
    command.env("RUNTIME_ROOT", dir.path()).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    command.envs([("RUNTIME_WATCH_ROOT", "false"), ("RUNTIME_IGNOREDOTFILES", "true"), ("USE_STATSD", "false")]);
    command.envs([("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_POOL_SIZE", "10"), ("LOG_LEVEL", "INFO")]);
    command.envs(["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0")));
    let mut child = Killed(command.spawn().expect("the link can be run"));
    let mut lines = Vec::new();
    for line in BufReader::new(child.0.stderr.take().expect("stderr is piped")).lines().map_while(Result::ok) {
        lines.push(line);
        if lines.last().is_some_and(|line| line.contains("serving")) {
            break;
        }
    }
    assert!(lines.last().is_some_and(|line| line.contains("serving")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("domains=1")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("WARN")), "{lines:?}");
}

/// The status of the request that the compose file suggests.
fn status(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("Envoy listens");
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nx-demo: try-me\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it can be sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is answered");
    answer.split(' ').nth(1).expect("an answer has a status").to_owned()
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_the_compose_file_promises_happens_with_its_envoy_and_the_example_rules() {
    let rules = root().join("config/rules");
    let server = Server::builder().env("RATE_LIMIT_CONFIG", &rules.display().to_string()).start();
    let port = free_port();
    let sluice = server.grpc().rsplit_once(':').expect("an address has a port").1;
    // The same file at other addresses, and with time to spare: a missed deadline would let requests through.
    let mut bootstrap = read("deploy/docker/envoy.yaml");
    for (from, to) in [
        ("address: 0.0.0.0, port_value: 10000", format!("address: 127.0.0.1, port_value: {port}")),
        ("address: sluice, port_value: 8081", format!("address: 127.0.0.1, port_value: {sluice}")),
        ("@hello", format!("@hello-{port}")),
        ("timeout: 0.25s\n                      failure", "timeout: 10s\n                      failure".to_owned()),
    ] {
        assert!(bootstrap.contains(from), "{from} is no longer in envoy.yaml");
        bootstrap = bootstrap.replace(from, &to);
    }
    let path = server.dir().join("envoy-bootstrap.yaml");
    fs::write(&path, bootstrap).expect("a file can be written");
    let mut envoy = Command::new(envoy());
    envoy.args(["--disable-hot-restart", "--concurrency", "1", "-l", "error", "-c"]).arg(&path);
    let _envoy = Killed(envoy.stdin(Stdio::null()).spawn().expect("Envoy starts"));

    let address = format!("127.0.0.1:{port}");
    wait_until("Envoy listens", || TcpStream::connect(&address).is_ok());
    // Three a minute. When a minute ends meanwhile, there are three more.
    let statuses = [(); 7].map(|()| status(&address));
    assert_eq!(statuses[..3], ["200"; 3], "{statuses:?}");
    assert!(statuses.contains(&"429".to_owned()), "{statuses:?}");
}
