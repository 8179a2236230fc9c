//! Callers that do not mean well, and what becomes of everybody else: others are answered throughout, the attacker is closed, and
//! memory stays where it was. Times are shown and not judged; the fault table measures them.

pub mod attack;
mod beyond;
mod cancelled;
mod descriptors;
mod refused;
pub mod wire;

use std::time::{Duration, Instant};

use attack::{Attack, FLOODS, HOLDS, PATIENCE, timed};

use crate::{
    harness::{
        Server,
        grpc::request,
        load::{Call, Load, Outcome, Style, p99},
        wait::holds_within,
        wait_until,
    },
    transport::certificates::Authority,
};

const RULES: &str =
    "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}\n";
const MEMORY_MAX: usize = 64 << 20;
/// No victim waits this long, however busy the machine is.
const SAFE: Duration = Duration::from_secs(5);

/// Callers on connections of their own, who are asked for correct answers all the time.
struct Victims<'s> {
    server: &'s Server,
    load: Load,
    alone: Duration,
    memory: usize,
    since: Instant,
}

impl<'s> Victims<'s> {
    fn of(server: &'s Server) -> Self {
        let style = Style { callers_of_each: 2, pause: Some(Duration::from_millis(2)), deadline: None };
        let load = Load::start(&[server.grpc()], &style, |caller, _| request("d", &[("user", &caller.to_string())]));
        load.wait_for_calls(500);
        let alone = p99(&load.calls());
        Self { server, load, alone, memory: server.memory(), since: Instant::now() }
    }

    /// Runs something and looks at the memory of the server meanwhile. Gives the most that it grew.
    fn during<T: Send>(&self, run: impl FnOnce() -> T + Send) -> (T, usize) {
        let mut most = 0;
        let done = std::thread::scope(|scope| {
            let running = scope.spawn(run);
            let ended = holds_within(2 * PATIENCE, || {
                most = most.max(self.server.memory());
                running.is_finished()
            });
            assert!(ended, "the attack goes on");
            running.join().expect("the attack does not panic")
        });
        self.load.wait_for_calls(50);
        (done, most.max(self.server.memory()).saturating_sub(self.memory))
    }

    #[track_caller]
    fn were_served(self, name: &str, grown: usize) {
        let calls: Vec<Call> = self.load.calls_since(self.since);
        let worst = calls.iter().map(Call::took).max().unwrap_or_default();
        eprintln!(
            "{name}: {} victim calls, p99 {:?}, alone {:?}, worst {worst:?}; memory + {} KB",
            calls.len(),
            p99(&calls),
            self.alone,
            grown >> 10
        );
        let wrong: Vec<_> = calls.iter().filter(|call| call.outcome != Outcome::Ok).collect();
        assert!(wrong.is_empty(), "{name}: victims got {:?}", wrong.first());
        assert!(worst < SAFE, "{name}: a victim waited {worst:?}");
        assert!(grown < MEMORY_MAX, "{name}: memory grew by {grown} bytes");
        self.load.stop();
    }
}

#[track_caller]
fn withstand(attacks: &[Attack]) {
    for attack in attacks {
        let server = Server::start(RULES);
        let victims = Victims::of(&server);
        let ((ended, took), grown) = victims.during(|| timed(attack, server.grpc()));
        eprintln!("{}: {ended:?} after {took:?}", attack.name);
        assert_eq!(ended, attack.ends, "{}", attack.name);
        victims.were_served(attack.name, grown);
        let lines =
            server.log().iter().filter(|line| line.contains("\"level\":\"WARN\"") || line.contains("warn")).count();
        assert!(lines <= 5, "{}: the log has {lines} warnings", attack.name);
    }
}

#[test]
fn floods_end_with_their_connection_while_others_are_served() {
    withstand(FLOODS);
}

#[test]
fn slow_readers_are_cut_off_while_others_are_served() {
    withstand(&HOLDS[..1]);
}

#[test]
fn requests_that_are_never_finished_are_refused_while_others_are_served() {
    withstand(&HOLDS[1..]);
}

#[test]
fn idle_connections_cost_little_and_make_room_for_others() {
    const CONNECTIONS: usize = 3_000;
    const MAX: &str = "2000";
    let server = Server::builder().file("rules.yaml", RULES).env("GRPC_MAX_CONNECTIONS", MAX).start();
    let victims = Victims::of(&server);
    let opening = attack::opening();
    let (idle, grown) = victims.during(|| {
        let mut idle = attack::idle(server.grpc(), CONNECTIONS / 2, b"");
        idle.extend(attack::idle(server.grpc(), CONNECTIONS / 2, &opening));
        idle
    });
    wait_until("the oldest have made room", || attack::closed(&idle) >= 1_000);
    server.ask(request("d", &[("user", "new")])).expect("one who comes late is let in and answered");
    let open = server.metric("sluice_connections{door=\"grpc\"}");
    assert!(open <= 2_000.0, "{open} connections");
    assert!(grown < 20 << 20, "{grown} bytes for {CONNECTIONS} connections");
    victims.were_served("idle connections", grown);
}

#[test]
fn stalled_handshakes_are_cut_off_while_others_are_served() {
    let authority = Authority::new();
    authority.sign("server", "DNS:localhost", 30);
    let file = |name| authority.path(name).to_str().expect("is text").to_owned();
    let server = Server::builder()
        .file("rules.yaml", RULES)
        .env("GRPC_SERVER_USE_TLS", "true")
        .env("GRPC_SERVER_TLS_CERT", &file("server.crt"))
        .env("GRPC_SERVER_TLS_KEY", &file("server.key"))
        .start();
    // The beginning of a record that says it is a ClientHello of 512 bytes.
    let (before, began) = (server.memory(), Instant::now());
    let stalled = attack::idle(server.grpc(), 1_000, &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]);
    let mut answered = 0;
    wait_until("they are cut off", || {
        let question = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "v"}]}]}"#;
        assert_eq!(server.post_json(question).status, 200);
        answered += 1;
        attack::are_closed(&stalled)
    });
    let grown = server.memory().saturating_sub(before);
    eprintln!(
        "stalled handshakes: closed after {:?}, {answered} answers meanwhile, + {} KB",
        began.elapsed(),
        grown >> 10
    );
    assert!(grown < MEMORY_MAX, "memory grew by {grown} bytes");
    assert_eq!(server.metric("sluice_connections_closed_total{door=\"grpc\",reason=\"silent\"}"), 1_000.0);
}
