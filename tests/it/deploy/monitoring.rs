//! The alerts and the dashboard: checked by promtool, and asked of a real Prometheus that scrapes a real server.

use std::{
    collections::BTreeSet,
    fs,
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use super::{read, root, run, said, script, succeed};
use crate::{
    harness::{
        Server,
        grpc::request,
        http,
        wait::{DEADLINE, holds_within},
        wait_until,
    },
    servers::{REDIS, Server as Store, free_port},
};

const RULES: &str = r"
domain: edge
descriptors:
  - {key: ip, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: shadow, rate_limit: {unit: day, requests_per_unit: 1}, shadow_mode: true}
";

/// Only with TLS, which the server of these tests does not use.
const WITH_TLS: &str = "sluice_tls_certificate_expiry_seconds";

fn promtool() -> Command {
    let mut command = Command::new("promtool");
    command.current_dir(root().join("deploy/prometheus"));
    command
}

/// A server that has seen everything which can be counted: refusals, hits near a limit, and the loss of its store.
fn eventful_server() -> Server {
    let store = Store::start(REDIS);
    // Calls of a busy machine are slow, and a slow call would end the good days too early.
    let server =
        Server::builder().file("rules.yaml", RULES).env("REDIS_URL", &store.url()).env("REDIS_TIMEOUT", "5s").start();
    wait_until("the store answers", || server.metric("sluice_store_up") == 1.0);
    for _ in 0..5 {
        ask(&server);
    }
    drop(store);
    wait_until("decisions are degraded", || {
        ask(&server);
        !server.scrape().of("sluice_degraded_decisions_total").is_empty()
    });
    server
}

fn ask(server: &Server) {
    for key in ["ip", "shadow"] {
        server.ask(request("edge", &[(key, "1")])).expect("is answered");
    }
}

/// Everything in a text that is named like a metric of ours, without what Prometheus adds to the name of a histogram.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = names.filter(|name| name.starts_with("sluice_") || name.starts_with("ratelimit_service_"));
    ours.map(|name| name.strip_suffix("_bucket").or(name.strip_suffix("_count")).unwrap_or(name).to_owned()).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("deploy/grafana/dashboard.json")).expect("the dashboard is JSON")
}

/// All but the rows that part them.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().expect("a dashboard has panels");
    panels.iter().filter(|panel| panel["type"] != "row").collect()
}

fn queries(dashboard: &Value) -> Vec<(&str, &str)> {
    let of = |panel| {
        let title = text(panel, "title");
        let targets = panel["targets"].as_array().expect("a panel has queries");
        targets.iter().map(move |target| (title, text(target, "expr")))
    };
    panels(dashboard).into_iter().flat_map(of).collect()
}

#[track_caller]
fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().filter(|text| !text.is_empty()).unwrap_or_else(|| panic!("there is no {name} in {value}"))
}

#[test]
fn promtool_accepts_the_alerts_and_the_scrape_configuration() {
    succeed(promtool().args(["check", "rules", "alerts.yaml"]));
    succeed(promtool().args(["check", "config", "scrape.yaml"]));
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    succeed(promtool().args(["test", "rules", "alerts_test.yaml"]));
    succeed(script("alerts.py").arg("deploy/prometheus"));
}

#[test]
fn a_tool_that_finds_nothing_would_be_noticed() {
    let dir = tempfile::tempdir().expect("there is room for a directory");
    for name in ["alerts.yaml", "alerts_test.yaml", "RUNBOOK.md"] {
        let text = read(&format!("deploy/prometheus/{name}"));
        let text = text.replace("sluice_store_up{job=\"sluice\"} == 0", "sluice_store_up{job=\"sluice\"} == 2");
        let text = text.replace("## SluiceEvictions", "## SluiceEviction");
        fs::write(dir.path().join(name), text).expect("a file can be written");
    }
    let tested = run(promtool().args(["test", "rules", "alerts_test.yaml"]).current_dir(dir.path()));
    assert!(!tested.status.success() && said(&tested).contains("SluiceStoreDown"), "{}", said(&tested));
    let checked = run(script("alerts.py").arg(dir.path()));
    assert!(!checked.status.success() && said(&checked).contains("SluiceEvictions"), "{}", said(&checked));
}

#[test]
fn every_panel_says_what_it_shows_and_in_which_unit() {
    let dashboard = dashboard();
    let all = dashboard["panels"].as_array().expect("a dashboard has panels");
    let ids: BTreeSet<_> = all.iter().map(|panel| panel["id"].as_u64().expect("a panel has an id")).collect();
    assert_eq!(ids.len(), all.len(), "two panels have one id");
    for panel in panels(&dashboard) {
        text(panel, "title");
        assert!(text(panel, "description").ends_with('.'), "{}: its description is no sentence", text(panel, "title"));
        text(&panel["fieldConfig"]["defaults"], "unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", text(panel, "title"));
    }
    let variables = dashboard["templating"]["list"].as_array().expect("a dashboard has variables");
    let variables: Vec<_> = variables.iter().map(|variable| text(variable, "name")).collect();
    assert_eq!(variables, ["datasource", "job", "instance", "domain"]);
}

#[test]
fn no_two_panels_overlap() {
    let dashboard = dashboard();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("a dashboard has panels") {
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a panel has a place");
        for x in at("x")..at("x") + at("w") {
            assert!(x < 24, "{} is wider than the page", panel["title"]);
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{} covers another panel", panel["title"]);
            }
        }
    }
}

#[test]
fn every_metric_of_the_dashboard_and_the_alerts_is_in_a_scrape() {
    let server = eventful_server();
    let scrape = server.scrape();
    for path in ["deploy/grafana/dashboard.json", "deploy/prometheus/alerts.yaml", "deploy/prometheus/RUNBOOK.md"] {
        let metrics = metrics_in(&read(path));
        assert!(!metrics.is_empty(), "{path} has no metrics");
        for metric in metrics.iter().filter(|metric| *metric != WITH_TLS) {
            assert!(scrape.kind(metric).is_some(), "{path}: a running server has no {metric}");
        }
    }
}

/// A Prometheus that scrapes one server often.
struct Prometheus {
    child: Child,
    address: String,
    _dir: TempDir,
}

impl Prometheus {
    fn start(target: &str) -> Self {
        let dir = tempfile::tempdir().expect("there is room for a directory");
        let config = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\n\
             scrape_configs:\n  - job_name: sluice\n    static_configs: [{{targets: ['{target}']}}]\n"
        );
        let path = dir.path().join("prometheus.yml");
        fs::write(&path, config).expect("a file can be written");
        let address = format!("127.0.0.1:{}", free_port());
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("prometheus cannot be run ({error}): tests/run installs what tests need"));
        Self { child, address, _dir: dir }
    }

    /// How many series a query gives; none while Prometheus is not up.
    fn series(&self, query: &str) -> Option<usize> {
        std::net::TcpStream::connect(&self.address).ok()?;
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let form = "application/x-www-form-urlencoded";
        let answer = http::send(&self.address, "POST", "/api/v1/query", form, format!("query={encoded}"));
        if answer.status == 503 {
            return None;
        }
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        answer.json()["data"]["result"].as_array().map(Vec::len)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_panel_of_the_dashboard_shows_something_of_a_running_server() {
    let server = eventful_server();
    let prometheus = Prometheus::start(server.http());
    let dashboard = dashboard();
    let queries = queries(&dashboard);
    assert!(queries.len() > 30, "there are only {} queries", queries.len());
    for (title, query) in queries.into_iter().filter(|(_, query)| !query.contains(WITH_TLS)) {
        let query = query.replace("$__rate_interval", "1m").replace("$job", "sluice");
        let query = query.replace("$instance", ".*").replace("$domain", ".*");
        assert!(!query.contains('$'), "{title}: {query}");
        let shown = holds_within(DEADLINE, || prometheus.series(&query).is_some_and(|series| series > 0));
        assert!(shown, "{title} shows nothing: {query}");
    }
}
