//! The page on moving from the reference: what it says of settings is true, and its example is accepted.

use std::{fs, process::Command};

use super::{envoy, read, settings, succeed};
use crate::harness::Server;

/// The names between two sentences of the page.
fn names_between(from: &str, to: &str) -> Vec<String> {
    let page = read("deploy/MIGRATING.md");
    let part = page.split_once(from).unwrap_or_else(|| panic!("the page does not say: {from}")).1;
    let part = part.split_once(to).unwrap_or_else(|| panic!("the page does not say: {to}")).0;
    part.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_settings_that_the_page_calls_served_are_settings() {
    let names = names_between("Served, with the reference's meaning", "Not served.");
    assert!(names.len() > 50, "only {} names were found", names.len());
    let known = settings();
    for name in names {
        assert!(known.contains(&name), "{name} is called served, but sluice does not have it");
    }
}

#[test]
fn the_settings_that_the_page_calls_not_served_are_named_at_the_start() {
    let names = names_between("Not served. Setting one is no error", "`BACKEND_TYPE=memcache`");
    assert!(names.len() > 40, "only {} names were found", names.len());
    let builder = Server::builder().file("rules.yaml", "domain: d\n");
    // What the reference has by default is not warned of, and this one is on there.
    let value = |name: &str| if name == "XDS_CLIENT_BACKOFF_JITTER" { "false" } else { "true" };
    let server = names.iter().fold(builder, |builder, name| builder.env(name, value(name))).start();
    for name in &names {
        server.wait_for_line(&["\"warning\"", &format!("\"{name} ")]);
    }
}

#[test]
fn envoy_accepts_two_rate_limit_filters_in_one_chain_as_the_page_has_them() {
    let page = read("deploy/MIGRATING.md");
    let example = page.split_once("```yaml\n").and_then(|(_, rest)| rest.split_once("```")).expect("an example").0;
    let address = "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}}";
    let cluster = |name: &str| {
        let assignment = format!("{{cluster_name: {name}, endpoints: [{{lb_endpoints: [{address}]}}]}}");
        format!("  - {{name: {name}, type: STATIC, load_assignment: {assignment}}}\n")
    };
    let clusters: String = ["ratelimit", "sluice", "backend"].map(cluster).concat();
    let filters: String = example.lines().map(|line| format!("       {line}\n")).collect();
    let bootstrap = format!(
        r#"
static_resources:
  clusters:
{clusters}
  listeners:
  - name: ingress
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ingress
          route_config:
            virtual_hosts: [{{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: backend}}}}]}}]
{filters}"#
    );
    let dir = tempfile::tempdir().expect("there is room for a directory");
    let path = dir.path().join("bootstrap.yaml");
    fs::write(&path, bootstrap).expect("a file can be written");
    succeed(Command::new(envoy()).args(["--mode", "validate", "-l", "error", "-c"]).arg(&path));
}
