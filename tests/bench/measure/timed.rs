//! Answers a second and latency. In turns, so that whatever else the machine does falls on everybody alike.

use std::fs;

use super::{
    Peer, Wishes,
    load::{self, Asked, number},
    servers::{Kind, Redis, Running, has_limitador},
    table::{Rounds, Table},
};

/// Something to put under load.
struct Served {
    name: String,
    address: String,
    asked: Asked,
    /// Whose CPU is counted; not known of a peer that may be anywhere.
    process: Option<u32>,
    /// Ends with this.
    _server: Option<Running>,
}

impl Served {
    fn own(name: &str, kind: Kind<'_>, asked: Asked, env: &[(&str, &str)]) -> Self {
        let server = Running::start(kind, env);
        let (address, process) = (server.address.clone(), Some(server.id()));
        Self { name: name.to_owned(), address, asked, process, _server: Some(server) }
    }

    fn of_peer(peer: &Peer, name: &str, asked: Asked) -> Self {
        let name = format!("{}, {name}", peer.name);
        Self { name, address: peer.address.clone(), asked, process: peer.process, _server: None }
    }

    fn cpu_us(&self) -> f64 {
        self.process.map_or(f64::NAN, cpu_us)
    }
}

/// All threads of a process.
fn cpu_us(process: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the server runs");
    let ns = |task: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    tasks.filter_map(ns).sum::<f64>() / 1_000.0
}

fn all(wishes: &Wishes, redis: &Redis) -> Vec<Served> {
    let embedded = |rules| Kind::Sluice { rules, redis: None };
    let in_redis = |rules| Kind::Sluice { rules, redis: Some(redis.port) };
    let mut all = vec![
        Served::own("floor", Kind::Floor, Asked::One, &[]),
        Served::own("sluice embedded, 1 rule", embedded("1.yaml"), Asked::One, &[]),
        Served::own("sluice embedded, 3 rules", embedded("3.yaml"), Asked::Three, &[]),
        Served::own("sluice Redis, 1 rule", in_redis("1.yaml"), Asked::One, &[]),
        Served::own("sluice Redis, 1 rule, 100k keys", in_redis("1.yaml"), Asked::OneOfMany, &[]),
        Served::own("sluice Redis, 3 rules", in_redis("3.yaml"), Asked::Three, &[]),
        Served::own("sluice Redis, 1 rule of 3 rates", in_redis("3-rates.yaml"), Asked::OneOfMany, &[]),
        Served::own("sluice Redis, refused", in_redis("refused.yaml"), Asked::One, &[]),
    ];
    let asked = [("1 rule", Asked::One), ("1 rule, 100k keys", Asked::OneOfMany), ("3 rules", Asked::Three)];
    if has_limitador() {
        for (place, redis) in [("in memory", None), ("in Redis", Some(redis.port))] {
            let served =
                |name, asked| Served::own(&format!("limitador {place}, {name}"), Kind::Limitador { redis }, asked, &[]);
            all.extend(asked.map(|(name, asked)| served(name, asked)));
        }
    }
    for peer in &wishes.peers {
        all.extend(asked.map(|(name, asked)| Served::of_peer(peer, name, asked)));
    }
    all
}

/// For each of them what every round measured; round by round, and not one after the other.
fn in_turns<T>(wishes: &Wishes, all: &[Served], measure: impl Fn(&Served) -> T) -> Vec<Vec<T>> {
    let mut rounds: Vec<Vec<T>> = all.iter().map(|_| Vec::new()).collect();
    for _ in 0..wishes.rounds {
        for (served, rounds) in all.iter().zip(&mut rounds) {
            rounds.push(measure(served));
        }
    }
    rounds
}

fn column<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> Rounds {
    Rounds::new(rounds.iter().map(of).collect())
}

struct Saturated {
    rate: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
    /// The share of answers that a failure policy gave.
    degraded: f64,
}

fn saturate(served: &Served, seconds: u64, connections: &str, streams: &str) -> Saturated {
    let cpu = served.cpu_us();
    let duration = format!("{seconds}s");
    let shape = ["--connections", connections, "--streams", streams, "--duration", &duration, "--warmup", "0ms"];
    let report = load::bench(&served.address, served.asked, &shape);
    Saturated {
        rate: number(&report, "/answers_per_s"),
        cpu_us: (served.cpu_us() - cpu) / number(&report, "/answers"),
        p50_us: number(&report, "/latency_us/p50"),
        p99_us: number(&report, "/latency_us/p99"),
        degraded: number(&report, "/degraded") / number(&report, "/answers"),
    }
}

pub fn saturation(wishes: &Wishes) {
    let redis = Redis::start();
    let all = all(wishes, &redis);
    let rounds = in_turns(wishes, &all, |served| saturate(served, wishes.seconds, "8", "32"));
    let columns = ["server", "answers/s", "spread", "server CPU us, median", "least", "p50 ms", "p99 ms", "by policy"];
    let table = Table::new("Saturation, sluice bench, 8 connections x 32 streams", &columns);
    for (served, rounds) in all.iter().zip(&rounds) {
        let (rate, cpu) = (column(rounds, |it| it.rate), column(rounds, |it| it.cpu_us));
        table.row(&[
            served.name.clone(),
            format!("{:.0}", rate.median()),
            rate.spread(),
            format!("{:.1}", cpu.median()),
            format!("{:.1}", cpu.least()),
            format!("{:.2}", column(rounds, |it| it.p50_us).median() / 1_000.0),
            format!("{:.2}", column(rounds, |it| it.p99_us).median() / 1_000.0),
            format!("{:.3} %", 100.0 * column(rounds, |it| it.degraded).median()),
        ]);
    }
    // h2load sends one constant body.
    let all: Vec<Served> = all.into_iter().filter(|served| served.asked == Asked::One).collect();
    let rounds = in_turns(wishes, &all, |served| {
        let cpu = served.cpu_us();
        let rate = load::h2load(&served.address, 8, 32, wishes.seconds);
        // It warms up for one more second.
        #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
        let cpu = (served.cpu_us() - cpu) / (rate * (wishes.seconds + 1) as f64);
        (rate, cpu)
    });
    let columns = ["server", "requests/s", "spread", "server CPU us, about", "least"];
    let table = Table::new("Saturation, h2load -t1 -c8 -m32", &columns);
    for (served, rounds) in all.iter().zip(&rounds) {
        let (rate, cpu) = (column(rounds, |it| it.0), column(rounds, |it| it.1));
        table.row(&[
            served.name.clone(),
            format!("{:.0}", rate.median()),
            rate.spread(),
            format!("{:.1}", cpu.median()),
            format!("{:.1}", cpu.least()),
        ]);
    }
}

pub fn latency(wishes: &Wishes) {
    let redis = Redis::start();
    let all = all(wishes, &redis);
    let duration = format!("{}s", wishes.seconds);
    let shapes: [(&str, &[&str]); 2] = [
        ("Latency, 4 connections x 1 stream", &["--connections", "4", "--streams", "1"]),
        ("Latency, 5000/s over 8 connections, from when a call was due", &["--connections", "8", "--rate", "5000"]),
    ];
    for (title, shape) in shapes {
        let rounds = in_turns(wishes, &all, |served| {
            let cpu = served.cpu_us();
            let more = [shape, &["--duration", &duration, "--warmup", "0ms"]].concat();
            let report = load::bench(&served.address, served.asked, &more);
            let of = |name: &str| number(&report, &format!("/latency_us/{name}"));
            (of("p50"), of("p99"), of("p99.9"), (served.cpu_us() - cpu) / number(&report, "/answers"))
        });
        let columns = ["server", "p50 us", "p99 us", "spread", "p99.9 us", "server CPU us"];
        let table = Table::new(title, &columns);
        for (served, rounds) in all.iter().zip(&rounds) {
            let p99 = column(rounds, |it| it.1);
            table.row(&[
                served.name.clone(),
                format!("{:.0}", column(rounds, |it| it.0).median()),
                format!("{:.0}", p99.median()),
                p99.spread(),
                format!("{:.0}", column(rounds, |it| it.2).median()),
                format!("{:.1}", column(rounds, |it| it.3).median()),
            ]);
        }
    }
}

pub fn runtimes(wishes: &Wishes) {
    let redis = Redis::start();
    let mut all = Vec::new();
    for runtime in ["multi", "per-core"] {
        let env = [("SLUICE_RUNTIME", runtime)];
        for (store, redis) in [("embedded", None), ("Redis", Some(redis.port))] {
            let kind = Kind::Sluice { rules: "1.yaml", redis };
            all.push(Served::own(&format!("{runtime}, {store}"), kind, Asked::OneOfMany, &env));
        }
    }
    let columns =
        ["runtime", "connections x streams", "answers/s", "spread", "server CPU us", "least", "p50 us", "p99 us"];
    let table = Table::new("Runtimes", &columns);
    for (connections, streams) in [("1", "1"), ("1", "100"), ("2", "64"), ("8", "32"), ("64", "4")] {
        let rounds = in_turns(wishes, &all, |served| saturate(served, wishes.seconds, connections, streams));
        for (served, rounds) in all.iter().zip(&rounds) {
            let (rate, cpu) = (column(rounds, |it| it.rate), column(rounds, |it| it.cpu_us));
            table.row(&[
                served.name.clone(),
                format!("{connections} x {streams}"),
                format!("{:.0}", rate.median()),
                rate.spread(),
                format!("{:.1}", cpu.median()),
                format!("{:.1}", cpu.least()),
                format!("{:.0}", column(rounds, |it| it.p50_us).median()),
                format!("{:.0}", column(rounds, |it| it.p99_us).median()),
            ]);
        }
    }
}
