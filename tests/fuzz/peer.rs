//! A peer that a real store is connected to, and that answers a call with any bytes at all: the way from the socket through the
//! client to the decision. What callers get is a decision or the policy, and afterwards the store is as well as before.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use sluice::{
    config::{CompileOptions, Source, compile, settings::Settings},
    engine::{
        request::{Descriptor, Entry, Hits, Request},
        rule::OnStoreFailure,
    },
    limiter::{Limiter, Policy, Rules},
    live,
    store::{
        Store,
        local::LocalShare,
        redis::RedisStore,
        refusals::{Refusals, Scope},
    },
    telemetry::metrics::Metrics,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{corpus, mutate::mutated, panics, root};

const CASES: u64 = 60;
/// Some time, and a key that was absent.
const ADMITTED: &[u8] = b"$8\r\n\x01\x02\x03\x04\x05\x06\x07\0\r\n";

/// What the next call is answered.
type Next = Arc<Mutex<Option<Vec<u8>>>>;

async fn serve(client: TcpStream, next: Next) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let words = command(&mut client).await?;
        let is_call = words[0].eq_ignore_ascii_case(b"EVALSHA") || words[0].eq_ignore_ascii_case(b"EVAL");
        let is_probe = words.get(3).is_some_and(|key| key.ends_with(b"}canary"));
        let said = if is_call && !is_probe { next.lock().unwrap().take() } else { None };
        let (said, is_rubbish) = match said {
            Some(said) => (said, true),
            None if is_call => (ADMITTED.to_vec(), false),
            None => (b"+OK\r\n".to_vec(), false),
        };
        client.write_all(&said).await.ok()?;
        if is_rubbish {
            // Half of a reply would be waited for in vain.
            return client.shutdown().await.ok();
        }
    }
}

async fn command(client: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    for _ in 0..number(client).await? {
        let mut word = vec![0; number(client).await? + 2];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    (!words.is_empty()).then_some(words)
}

async fn number(client: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

fn limiter(address: &str) -> Limiter {
    let set = |name: &str| match name {
        "REDIS_URL" => Some(address.to_owned()),
        "REDIS_TIMEOUT" => Some("5s".to_owned()),
        _ => None,
    };
    let (main, _) = Settings::read(set).unwrap().0.store.redis.unwrap();
    let metrics = Metrics::new();
    let store = RedisStore::start(main, None, &Arc::new(metrics.store_calls()), &CancellationToken::new());
    let text = fs::read_to_string(root().join("tests/fuzz/rules.yaml")).unwrap();
    let compiled = compile(&[Source { name: "rules.yaml".to_owned(), text }], &CompileOptions::default()).unwrap();
    let (_, rules) = live::pair(Rules::new(compiled.set, compiled.metadata));
    let policy = Policy { on_store_failure: OnStoreFailure::Deny, near_limit_ratio: 0.8 };
    let limiter = Limiter::new(rules, Store::Redis(store), LocalShare::new(10, 1), policy, metrics);
    limiter.remembering(Refusals::new(Scope::new(0)))
}

async fn ask(limiter: &Limiter, value: &str) {
    let entries = [Entry { key: "b", value }];
    let descriptor = Descriptor { entries: entries.into_iter().collect(), hits: Hits::ONE, override_quota: None };
    let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect() };
    let answer = timeout(Duration::from_secs(20), limiter.check(&request, None)).await.expect("nobody waits for ever");
    let answer = answer.expect("the policy is deny, and not error");
    assert_eq!(answer.verdict().statuses.len(), 1);
}

async fn until_well(limiter: &Limiter) {
    let well = async {
        let mut looks = tokio::time::interval(Duration::from_millis(2));
        while !matches!(limiter.store(), Store::Redis(store) if store.is_well()) {
            looks.tick().await;
        }
    };
    timeout(Duration::from_secs(20), well).await.expect("the store is found well again");
}

#[tokio::test]
async fn every_reply_of_a_peer_is_a_decision_or_a_failure_and_is_got_over() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let next = Next::default();
    let shared = next.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, shared.clone()));
        }
    });
    let limiter = limiter(&address);
    let inputs: Vec<Vec<u8>> = corpus("reply").into_iter().map(|(_, input)| input).collect();
    let mut rng = Rng::with_seed(std::env::var("FUZZ_SEED").map_or(1, |seed| seed.parse().unwrap()));
    let wanted = std::env::var("PROPTEST_CASES").map_or(CASES, |cases| cases.parse().unwrap());
    for case in 0..wanted {
        until_well(&limiter).await;
        let rubbish = match inputs.get(usize::try_from(case).unwrap()) {
            Some(input) => input.clone(),
            None => mutated(&mut rng, &inputs),
        };
        let before = panics();
        *next.lock().unwrap() = Some(rubbish);
        // Another counter each time, so that no refusal is remembered.
        ask(&limiter, &case.to_string()).await;
        assert_eq!(panics(), before);
    }
}
