//! Every answer that a server can give, one by one: what the caller gets, whether the call is sent again, and whether the node is
//! asked any more.

use std::time::{Duration, Instant};

use super::sluice;
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Code, connect, native, request, wait},
        wait_until,
    },
    servers::fake::{Fake, Said},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 3, on_store_failure: deny}}
";

struct Seen {
    fake: Fake,
    sluice: Sluice,
    /// Whether the caller got what the store said, and not what the policy says.
    decided: bool,
}

impl Seen {
    /// Calls of the script by name and by text, without those of the probe.
    fn calls(&self) -> (usize, usize) {
        self.fake.calls()
    }

    fn trips(&self) -> f64 {
        self.sluice.metric("sluice_store_breaker_trips_total")
    }

    fn errors(&self, kind: &str) -> f64 {
        self.sluice.metric(&format!("sluice_store_errors_total{{kind=\"{kind}\"}}"))
    }
}

fn is_decided(sluice: &Sluice) -> bool {
    let response = sluice.ask(request("d", &[("a", "1")])).unwrap();
    let degraded = response.response_headers_to_add.iter().any(|header| header.key == "x-ratelimit-degraded");
    assert_eq!(degraded, response.overall_code == i32::from(Code::OverLimit), "the policy is deny");
    !degraded
}

/// The patience of a busy machine, and that of a caller who is to meet silence.
const PATIENT: &str = "5s";
const SHORT: &str = "500ms";

/// A sluice with one connection to it.
fn on(fake: &Fake, timeout: &str) -> Sluice {
    let env = [("REDIS_URL", &*fake.address()), ("REDIS_TIMEOUT", timeout), ("REDIS_POOL_SIZE", "1")];
    let sluice = sluice(RULES, &env);
    sluice.wait_for_store();
    sluice
}

/// One request, whose calls are answered like this, and then like any other.
fn see(said: impl IntoIterator<Item = Said>) -> Seen {
    see_within(PATIENT, said)
}

fn see_within(timeout: &str, said: impl IntoIterator<Item = Said>) -> Seen {
    let fake = Fake::start();
    let sluice = on(&fake, timeout);
    fake.answer_next(said);
    let decided = is_decided(&sluice);
    Seen { fake, sluice, decided }
}

/// The caller gets the policy, and the call is not sent again.
#[track_caller]
fn assert_failed(seen: &Seen, reason: &str, trips: f64) {
    assert!(!seen.decided);
    assert_eq!(seen.calls(), (1, 0), "it is not sent again");
    assert_eq!(seen.errors(reason), 1.0);
    assert_eq!(seen.trips(), trips);
    // As the next answers are good ones, so is the next decision.
    wait_until("the store is asked again", || is_decided(&seen.sluice));
}

#[test]
fn noscript_is_healed_at_once_on_the_same_connection() {
    let seen = see([Said::error("NOSCRIPT No matching script. Please use EVAL.")]);
    assert!(seen.decided);
    assert_eq!((seen.calls(), seen.fake.connections()), ((1, 1), 1));
    assert_eq!(seen.trips(), 0.0);
}

#[test]
fn readonly_drops_the_connection_and_tries_once_more() {
    let seen = see([Said::error("READONLY You can't write against a read only replica.")]);
    assert!(seen.decided);
    assert_eq!((seen.calls(), seen.fake.connections()), ((2, 0), 2));
    let twice = see([Said::error("READONLY no"), Said::error("READONLY no")]);
    assert!(!twice.decided);
    assert_eq!(twice.calls(), (2, 0), "and no more than once");
}

#[test]
fn a_node_that_says_it_cannot_serve_is_not_asked_any_more() {
    for error in [
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "BUSY Redis is busy running a script.",
        "CLUSTERDOWN The cluster is down",
    ] {
        let fake = Fake::start();
        let sluice = on(&fake, PATIENT);
        fake.answer_next([Said::error(error)]);
        fake.answer_probes(Some(Said::error(error)));
        assert!(!is_decided(&sluice), "{error}");
        // The breaker answers now; the node sees only probes.
        wait_until("the breaker has tripped", || sluice.metric("sluice_store_breaker_trips_total") == 1.0);
        for _ in 0..5 {
            assert!(!is_decided(&sluice), "{error}");
        }
        assert_eq!(fake.calls(), (1, 0), "{error}");
        assert_eq!(sluice.metric("sluice_store_errors_total{kind=\"breaker\"}"), 5.0);
        fake.answer_probes(None);
        wait_until("the store is asked again", || is_decided(&sluice));
    }
}

#[test]
fn tryagain_is_tried_again_a_few_times() {
    let again = || Said::error("TRYAGAIN Multiple keys request during rehashing of slot");
    for times in [1, 5] {
        let seen = see(std::iter::repeat_with(again).take(times));
        assert!(seen.decided);
        assert_eq!((seen.calls(), seen.trips()), ((times + 1, 0), 0.0));
    }
    let ever = see(std::iter::repeat_with(again).take(100));
    assert!(!ever.decided);
    assert_eq!((ever.calls(), ever.trips()), ((6, 0), 0.0));
}

#[test]
fn a_store_that_refuses_writes_is_told_of() {
    for error in [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "NOREPLICAS Not enough good replicas to write.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    ] {
        let seen = see([Said::error(error)]);
        assert_failed(&seen, "redis_error", 0.0);
        seen.sluice.wait_for_line(&["the store refuses writes"]);
    }
}

#[test]
fn a_password_or_permission_that_is_refused_is_told_with_what_to_fix() {
    for (error, advice) in [
        ("NOAUTH Authentication required.", "REDIS_AUTH"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "REDIS_AUTH"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", "README"),
    ] {
        let seen = see([Said::error(error)]);
        assert_failed(&seen, "redis_error", 1.0);
        seen.sluice.wait_for_line(&["the store fails", advice]);
    }
}

#[test]
fn other_errors_are_failures() {
    for error in [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR user_script:1: attempt to index nil",
        "ERR unknown command 'EVALSHA'",
        "SOMETHING nobody has ever heard of",
    ] {
        assert_failed(&see([Said::error(error)]), "redis_error", 0.0);
    }
}

/// The reply of the script: the time, in seven bytes, and what was found.
fn packed(found: &[u8]) -> String {
    let text: String = found.iter().map(|byte| char::from(*byte)).collect();
    format!("${}\r\n\x01\x02\x03\x04\x05\x06\x07{text}\r\n", 7 + found.len())
}

#[test]
fn a_reply_of_another_shape_is_a_bad_response() {
    for reply in [
        "+OK\r\n".to_owned(),
        "$-1\r\n".to_owned(),
        ":1\r\n".to_owned(),
        "*4\r\n:1\r\n:0\r\n:2\r\n:1000\r\n".to_owned(),
        // A time that no clock shows.
        "$8\r\nxxxxxxx\0\r\n".to_owned(),
        "$3\r\nnow\r\n".to_owned(),
        packed(&[]),
        packed(&[0, 0]),
        // The beginning of a state, and nothing more.
        packed(&[16, 1, 2]),
        // A key that the request does not have.
        packed(&[1, 7, 0]),
        "$27\r\nabcdefghijklmnopqrstuvwxyz1\r\n".to_owned(),
    ] {
        assert_failed(&see([Said::Bytes(reply)]), "bad_response", 0.0);
    }
}

#[test]
fn garbage_and_a_connection_that_ends_are_failures() {
    for (said, reason) in [
        (Said::BytesAndEnd("!@#$%^\r\n\r\n".to_owned()), None),
        (Said::BytesAndEnd("*4\r\n:1\r\n:0\r\n".to_owned()), Some("redis_error")),
        (Said::BytesAndEnd(String::new()), Some("redis_error")),
    ] {
        let seen = see([said]);
        assert!(!seen.decided);
        assert_eq!(seen.calls(), (1, 0), "it may have run, so it is not sent again");
        if let Some(reason) = reason {
            assert_eq!(seen.errors(reason), 1.0);
        }
        wait_until("a new connection serves", || is_decided(&seen.sluice));
        assert_eq!(seen.fake.connections(), 2);
    }
}

#[test]
fn silence_is_a_timeout_and_three_of_them_end_the_connection() {
    let seen = see_within(SHORT, std::iter::repeat_n(Said::Silence, 3));
    assert_failed(&seen, "timeout", 0.0);
    assert!(seen.calls().0 >= 4);
    wait_until("it was dialled again", || seen.fake.connections() == 2);
}

#[test]
fn a_timeout_in_the_middle_of_a_reply_is_no_answer_to_the_next() {
    // The rest of the first reply comes as the answer to the second call.
    let reply = packed(&[16, 1, 2, 3, 4, 5, 6, 7, 1, 0, 0, 0]);
    let (first, second) = reply.split_at(20);
    let seen = see_within(SHORT, [Said::Bytes(first.to_owned()), Said::Bytes(second.to_owned())]);
    assert!(!seen.decided);
    let response = seen.sluice.ask(request("d", &[("a", "1")])).unwrap();
    assert_ne!(response.statuses[0].limit_remaining, 1, "a late reply answers nobody");
}

/// Two nodes: the first has the slots, and sends us to the second.
fn redirected(said: impl Fn(&Fake) -> Said) -> (Fake, Fake, Sluice, bool) {
    let (first, second) = (Fake::start(), Fake::start());
    let slots = [(0, 16_383, &*first.address())].map(|(from, to, address)| (from, to, address.to_owned()));
    let slots: Vec<(u16, u16, &str)> = slots.iter().map(|(from, to, address)| (*from, *to, &**address)).collect();
    first.serve_slots(&slots);
    second.serve_slots(&slots);
    let env = [("REDIS_URL", &*first.address()), ("REDIS_TYPE", "CLUSTER"), ("REDIS_TIMEOUT", PATIENT)];
    let sluice = sluice(RULES, &env);
    sluice.wait_for_store();
    first.answer_next([said(&second)]);
    let decided = is_decided(&sluice);
    (first, second, sluice, decided)
}

#[test]
fn moved_is_followed_even_to_a_node_that_was_not_known() {
    let (first, second, sluice, decided) = redirected(|second| Said::error(&format!("MOVED 1 {}", second.address())));
    assert!(decided);
    assert_eq!((first.calls(), second.calls(), second.asking()), ((1, 0), (1, 0), 0));
    assert_eq!(sluice.metric("sluice_store_breaker_trips_total"), 0.0);
}

#[test]
fn ask_is_followed_with_asking() {
    let (first, second, sluice, decided) = redirected(|second| Said::error(&format!("ASK 1 {}", second.address())));
    assert!(decided);
    assert_eq!((first.calls(), second.calls(), second.asking()), ((1, 0), (1, 0), 1));
    assert_eq!(sluice.metric("sluice_store_breaker_trips_total"), 0.0);
}

#[test]
fn a_node_that_nobody_hears_of_any_more_is_let_go() {
    let (first, second, sluice, decided) = redirected(|second| Said::error(&format!("MOVED 1 {}", second.address())));
    assert!(decided);
    // The slots are still with the first, so the second is kept for no more than a while.
    wait_until("the second node is let go", || second.open() == 0);
    assert!(first.open() >= 1);
    assert!(is_decided(&sluice));
}

#[test]
fn a_node_that_a_slot_is_on_its_way_to_is_kept_though_the_cluster_does_not_list_it() {
    let ask = |second: &Fake| Said::error(&format!("ASK 1 {}", second.address()));
    let (first, second, sluice, decided) = redirected(ask);
    assert!(decided);
    let slots_asked = || first.slots_asked() + second.slots_asked();
    for _ in 0..3 {
        let before = slots_asked();
        first.answer_next([ask(&second)]);
        assert!(is_decided(&sluice));
        wait_until("the slots are asked for again", || slots_asked() > before);
    }
    assert_eq!(second.asking(), 4);
    // Beside those that were opened to ask for slots.
    wait_until("only its two lanes were ever dialled", || second.connections() - second.slots_asked() == 2);
}

#[test]
fn a_lane_that_cannot_be_dialled_anew_is_no_trouble_for_the_others() {
    let fake = Fake::start();
    let env = [("REDIS_URL", &*fake.address()), ("REDIS_POOL_SIZE", "4"), ("REDIS_TIMEOUT", "300ms")];
    let sluice = sluice(RULES, &env);
    wait_until("all lanes are connected", || fake.connections() == 4);
    sluice.wait_for_store();
    fake.be_deaf(true);
    fake.answer_next([Said::BytesAndEnd(String::new())]);
    assert!(!is_decided(&sluice), "the call that was under way");
    let since = Instant::now();
    // Longer than callers can wait for a dial, and than a dial may take.
    while since.elapsed() < Duration::from_secs(2) {
        assert!(is_decided(&sluice));
    }
    assert_eq!(sluice.metric("sluice_store_breaker_trips_total"), 0.0);
    fake.be_deaf(false);
    wait_until("it is dialled again", || fake.open() == 4 && fake.connections() > 5);
}

#[test]
fn a_sick_node_is_dialled_by_one_at_a_time() {
    let fake = Fake::start();
    let env = [("REDIS_URL", &*fake.address()), ("REDIS_POOL_SIZE", "8"), ("REDIS_TIMEOUT", PATIENT)];
    let sluice = sluice(RULES, &env);
    sluice.wait_for_store();
    wait_until("all lanes are connected, though nobody has come", || fake.connections() == 8);
    fake.answer_probes(Some(Said::BytesAndEnd(String::new())));
    fake.answer_next([Said::error("LOADING not yet")]);
    assert!(!is_decided(&sluice));
    let before = fake.connections();
    wait_until("it is dialled a few times", || fake.connections() >= before + 3);
    assert!(fake.open() <= 8, "one lane dials, the others wait");
    fake.answer_probes(None);
    sluice.wait_for_store();
    assert!(sluice.metric("sluice_store_breaker_trips_total") >= 1.0);
    wait_until("it is asked again", || is_decided(&sluice));
}

/// How the counter stands, or why nobody knows.
fn standing(sluice: &Sluice) -> Result<(), tonic::Status> {
    let (domain, limit_key) = ("d".to_owned(), "a:1".to_owned());
    let asked = native::GetBucketStatusRequest { domain, limit_key, entries: Vec::new() };
    wait(async {
        let channel = connect(sluice.grpc()).await;
        let mut client = native::rate_limiter_service_client::RateLimiterServiceClient::new(channel);
        client.get_bucket_status(asked).await.map(|_| ())
    })
}

#[test]
fn who_looks_at_a_counter_follows_a_slot_that_has_moved() {
    let (first, second, sluice, _) = redirected(|_| Said::Admitted);
    first.answer_get(&format!("-MOVED 1 {}\r\n", second.address()));
    second.show_time("1800000000");
    standing(&sluice).expect("the other node has it");
    wait_until("the other node was dialled", || second.connections() >= 1);
}

#[test]
fn who_looks_at_a_key_that_is_not_ours_is_told_so() {
    let fake = Fake::start();
    let sluice = on(&fake, PATIENT);
    fake.answer_get("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
    let status = standing(&sluice).expect_err("it is not ours");
    assert!(status.code() == tonic::Code::Unavailable && status.message().contains("bad_types"), "{status}");
}

#[test]
fn a_clock_that_shows_what_none_can_is_a_bad_response() {
    let fake = Fake::start();
    let sluice = sluice(RULES, &[("REDIS_URL", &fake.address()), ("REDIS_TIMEOUT", PATIENT)]);
    sluice.wait_for_store();
    let standing = |seconds: &str| {
        fake.show_time(seconds);
        standing(&sluice)
    };
    standing("1800000000").expect("a time as any other");
    for seconds in ["18446744073709551615", "9007199255", "-1", "", "soon"] {
        let status = standing(seconds).expect_err("is no time");
        assert!(
            status.code() == tonic::Code::Unavailable && status.message().contains("bad_response"),
            "{seconds}: {status}"
        );
    }
    assert_eq!(sluice.metric("sluice_panics_total"), 0.0);
}
