use super::*;
use crate::{
    engine::{
        algorithm::Mode,
        quota::{Period, Quota, Unit},
        request::Hits,
    },
    store::redis::{
        connect::Target,
        node::tests::vitals,
        settings::{Address, RedisSettings},
    },
};

type Answer = oneshot::Receiver<Reply>;

/// A lane that nobody runs, and the way into it.
fn lane() -> (Lane, mpsc::Sender<Pending>) {
    let address = Address::Tcp { host: "127.0.0.1".to_owned(), port: 1 };
    let dialer = Dialer::new(Target::Fixed(address.clone()), &Arc::new(RedisSettings::of(address)));
    let (sender, queue) = mpsc::channel(1_024);
    let vitals = Arc::new(vitals());
    (Lane::new(0, queue, Pool::builder().build_unchecked(dialer), DialErrors::default(), vitals), sender)
}

fn pending(keys: usize, slot: u16, way: Way) -> (Pending, Answer) {
    pending_of(1, keys, slot, way)
}

fn pending_of(checks: usize, keys: usize, slot: u16, way: Way) -> (Pending, Answer) {
    let quota = Arc::new(Quota::fixed_window(3, Period::try_new(Unit::Minute, 1).unwrap()).unwrap());
    let check = Check { quota, slot: 0, hits: Hits::ONE, mode: Mode::Enforce, chained: false };
    let names: Vec<String> = (0..keys).map(|number| number.to_string()).collect();
    let ask = Ask::Part(Arc::new((vec![check; checks], names.iter().map(String::as_str).collect())));
    let (reply, answer) = oneshot::channel();
    let deadline = Instant::now() + Duration::from_secs(60);
    (Pending { ask, slot: Some(slot), way, deadline, reply }, answer)
}

fn sizes(lane: &mut Lane) -> Vec<usize> {
    let mut sizes = Vec::new();
    while let Some(first) = lane.held.pop_front().or_else(|| lane.queue.try_recv().ok()) {
        sizes.push(lane.batch(first, 0).map_or(0, |sent| sent.batch.len()));
    }
    sizes
}

#[tokio::test]
async fn a_request_whose_caller_has_gone_or_is_out_of_time_is_not_sent() {
    let (mut lane, sender) = lane();
    let (gone, _) = pending(1, 1, Way::Shared);
    let (mut expired, _answer) = pending(1, 1, Way::Shared);
    expired.deadline = Instant::now();
    let (wanted, _wanted) = pending(1, 1, Way::Shared);
    for pending in [gone, expired, wanted] {
        sender.try_send(pending).unwrap();
    }
    assert_eq!(sizes(&mut lane), [1]);
    let (gone, _) = pending(1, 1, Way::Shared);
    sender.try_send(gone).unwrap();
    assert_eq!(sizes(&mut lane), [0]);
}

#[tokio::test]
async fn requests_of_another_slot_and_those_that_go_alone_do_not_travel_with_others() {
    let (mut lane, sender) = lane();
    let ways =
        [(1, Way::Shared), (1, Way::Shared), (2, Way::Shared), (2, Way::Asking), (2, Way::Alone), (2, Way::Alone)];
    let mut answers = Vec::new();
    for (slot, way) in ways {
        let (pending, answer) = pending(1, slot, way);
        answers.push(answer);
        sender.try_send(pending).unwrap();
    }
    assert_eq!(sizes(&mut lane), [2, 1, 1, 1, 1]);
}

#[tokio::test]
async fn a_batch_has_its_bounds() {
    let (mut lane, sender) = lane();
    let mut answers = Vec::new();
    for keys in std::iter::repeat_n(1, REQUESTS_MAX + 1).chain([40, 40, 100, 1]) {
        let (pending, answer) = pending(keys, 1, Way::Shared);
        answers.push(answer);
        sender.try_send(pending).unwrap();
    }
    assert_eq!(sizes(&mut lane), [REQUESTS_MAX, 2, 1, 1, 1]);
}

#[tokio::test]
async fn a_batch_is_bounded_by_its_checks_however_few_keys_they_share() {
    let (mut lane, sender) = lane();
    let mut answers = Vec::new();
    for checks in [100, 100, 56, 1, 200, 57, 1_000, 1] {
        let (pending, answer) = pending_of(checks, 1, 1, Way::Shared);
        answers.push(answer);
        sender.try_send(pending).unwrap();
    }
    assert_eq!(sizes(&mut lane), [3, 2, 1, 1, 1]);
}

#[tokio::test]
async fn a_call_on_an_older_link_says_nothing_about_the_newer_one() {
    let (mut lane, _sender) = lane();
    lane.link_number = 2;
    for _ in 0..10 {
        lane.note(Ended::Call { link: 1, failed: Some(Fault::Timeout) });
    }
    assert_eq!(lane.timeouts_in_a_row, 0);
    lane.note(Ended::Call { link: 2, failed: Some(Fault::Timeout) });
    assert_eq!(lane.timeouts_in_a_row, 1);
    lane.note(Ended::Call { link: 2, failed: None });
    assert_eq!(lane.timeouts_in_a_row, 0);
}
