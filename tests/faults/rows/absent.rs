//! The store is not there when sluice starts: nobody listens, somebody else does, or its name means nothing.

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use super::{is_back, is_by_policy, other_than, sluice};
use crate::{
    harness::{
        Server as Sluice,
        grpc::{self, request},
        load::{Call, Load, Outcome, Style, p99},
        wait_until,
    },
    servers::{AUTH, REDIS, Server, free_port},
    sheet::{Sheet, millis},
    watch::{self, Watch},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: allow, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: deny, rate_limit: {unit: year, requests_per_unit: 1000000, on_store_failure: deny}}
";
/// One that decides, and one more that the pool may hold.
const CONNECTIONS: usize = 2;
const STYLE: Style = Style { callers_of_each: 8, pause: Some(millis(40)), deadline: None };

pub fn at_the_start(sheet: &Sheet) {
    from_the_first_moment(sheet, "store down at the start");
    appears(sheet, "store down at the start", "down", free_port(), || ());
    let stranger = Stranger::start();
    appears(sheet, "wrong port: somebody else answers", "wrong-port", stranger.port, || stranger.leave());
    never_appears(sheet, "DNS fails", "no-such-host.invalid:6379");
}

/// Counted from the moment when the port accepts, and not from when it is said to serve: callers do not read the log.
fn from_the_first_moment(sheet: &Sheet, fault: &str) {
    let (url, port) = (format!("redis://{AUTH}@127.0.0.1:{}", free_port()), free_port().to_string());
    let builder = Sluice::builder().file("rules.yaml", RULES).env("REDIS_URL", &url).env("GRPC_PORT", &port);
    let _sluice = builder.env(sheet.timeout().0, sheet.timeout().1).spawn();
    let address = format!("127.0.0.1:{port}");
    wait_until("the port accepts", || TcpStream::connect(&address).is_ok());
    let accepted = Instant::now();
    let answer = grpc::ask(&address, request("d", &[("deny", "one")]));
    let is_denied = answer.is_ok_and(|answer| answer.overall_code() == grpc::Code::OverLimit);
    sheet.judge(fault, "the first moment is answered by policy", &is_denied, "true", is_denied);
    sheet.at_most(fault, "first answer after the port accepts", accepted.elapsed(), millis(250));
}

fn load_of(address: &str) -> Load {
    Load::start(&[address], &STYLE, |caller, _| request("d", &[(["allow", "deny"][caller % 2], "one")]))
}

/// All calls have an answer at once, by the store or by the policy of their rule.
fn answered(sheet: &Sheet, fault: &str, calls: &[Call]) {
    let other = |key: &str, wanted: &[Outcome]| {
        let its: Vec<Call> = calls.iter().filter(|call| *call.key == *key).cloned().collect();
        other_than(&its, wanted)
    };
    let wrong = other("allow=one", &[Outcome::Ok, Outcome::DegradedOk])
        + other("deny=one", &[Outcome::Ok, Outcome::DegradedOver]);
    sheet.count(fault, &format!("of {} calls neither by store nor policy", calls.len()), wrong, 0);
    sheet.at_most(fault, "p99 by policy", p99(calls.iter().filter(|call| is_by_policy(call))), millis(2));
}

fn appears(sheet: &Sheet, fault: &str, history: &str, port: u16, make_room: impl FnOnce()) {
    let url = format!("redis://{AUTH}@127.0.0.1:{port}");
    let sluice = sluice(RULES, &[("REDIS_URL", &url), sheet.timeout()]);
    let watch = Watch::begin([&sluice]);
    let load = load_of(sluice.grpc());
    sheet.run(&load, sheet.span(5.0, 1.0));
    make_room();
    let server = Server::start_on(REDIS, port);
    let well = Instant::now();
    sheet.step(&format!("{fault}: it appears"));
    load.wait_for(Outcome::Ok, well);
    sheet.run(&load, sheet.span(3.0, 0.5));
    let calls = sheet.record(load, history);
    let first = calls.iter().min_by_key(|call| call.sent).map(is_by_policy);
    sheet.judge(fault, "the first call is answered by policy", &first.unwrap_or(false), "true", first == Some(true));
    answered(sheet, fault, &calls);
    is_back(sheet, fault, &calls, well, millis(1_000));
    // It had no connection when the watch began.
    watch.end_with(sheet, fault, CONNECTIONS);
    watch::clean(sheet, fault, &[&server]);
}

fn never_appears(sheet: &Sheet, fault: &str, url: &str) {
    let sluice = sluice(RULES, &[("REDIS_URL", url), sheet.timeout()]);
    let load = load_of(sluice.grpc());
    sheet.run(&load, sheet.span(10.0, 1.0));
    let calls = sheet.record(load, "dns");
    answered(sheet, fault, &calls);
    let by_store = calls.iter().filter(|call| !is_by_policy(call)).count();
    sheet.count(fault, "answers by the store", by_store, 0);
    let lines = sluice.log().iter().filter(|line| line.contains("the store fails")).count();
    sheet.judge(fault, "lines in the log that say so", &lines, "1 to 10", (1..=10).contains(&lines));
    let alive = sluice.get("/livez").status == 200;
    sheet.judge(fault, "alive", &alive, "true", alive);
    let (status, _) = sluice.stop();
    sheet.judge(fault, "ends well when told to", &status.success(), "true", status.success());
}

/// Listens, and says something that is not Redis's.
struct Stranger {
    port: u16,
    left: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Stranger {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let port = listener.local_addr().expect("it has an address").port();
        let left = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let left = left.clone();
            move || {
                let mut clients = listener.incoming().map_while(Result::ok);
                while let Some(mut client) = clients.next().filter(|_| !left.load(Ordering::Relaxed)) {
                    let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
                }
            }
        });
        Self { port, left, thread }
    }

    /// The port is free when this returns.
    fn leave(self) {
        self.left.store(true, Ordering::Relaxed);
        // Somebody has to come for it to look up.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.thread.join().expect("it only listens");
    }
}
