//! Instructions of a server for one decision, counted by callgrind: user space only, and not those of Redis.
//!
//! Once a server runs, its counts are set to nothing and it gets a fixed load of few calls, and then the same with many; the
//! difference is what the calls cost. How it starts is not counted: that depends on the clock.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::{
    load::{self, Asked},
    servers::{HOST, Kind, Redis, Running, free_port, has_limitador, program, until, vgdb_prefix},
    table::Table,
};

const FEW: u64 = 1_000;
const MANY: u64 = 5_000;
const DUMP_DEADLINE: Duration = Duration::from_secs(30);

/// One thing to count.
pub struct Case<'a> {
    pub name: &'static str,
    pub kind: Kind<'a>,
    pub asked: Asked,
    pub expect: &'static str,
}

/// How many calls are under way at a time.
#[derive(Clone, Copy)]
pub struct Width {
    pub connections: &'static str,
    pub streams: &'static str,
}

pub const WIDTH: Width = Width { connections: "8", streams: "32" };
pub const ONE_AT_A_TIME: Width = Width { connections: "1", streams: "1" };
const ONE_CONNECTION: Width = Width { connections: "1", streams: "32" };

pub fn per_decision(case: &Case<'_>, width: Width) -> f64 {
    let counts = Counts::new();
    let server = Running::start_counted(case.kind, &[], &counts.0);
    // The first call of a rule makes its counters and metrics.
    ask(&server, case, width, FEW);
    let [few, many] = [(FEW, 1), (MANY, 2)].map(|(calls, dump)| {
        counts.control("zero", server.id());
        ask(&server, case, width, calls);
        counts.control("dump", server.id());
        counts.total(&format!("counts.{dump}"), case.name)
    });
    server.stop();
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let calls = (MANY - FEW) as f64;
    (many - few) / calls
}

fn ask(server: &Running, case: &Case<'_>, width: Width, calls: u64) {
    let calls = calls.to_string();
    let shape =
        ["--connections", width.connections, "--streams", width.streams, "--requests", &calls, "--threads", "1"];
    load::bench(&server.address, case.asked, &[&shape[..], &["--expect", case.expect]].concat());
}

/// The files of one run of callgrind.
pub struct Counts(pub PathBuf);

impl Counts {
    pub fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("sluice-bench-{}-{}", std::process::id(), free_port()));
        fs::create_dir_all(&dir).expect("there is room for a directory");
        Self(dir)
    }

    /// Tells callgrind what to do.
    fn control(&self, what: &str, process: u32) {
        let prefix = format!("--vgdb-prefix={}", vgdb_prefix(&self.0).display());
        let output = Command::new("vgdb").env("HOST", HOST).args([&prefix, &format!("--pid={process}"), what]).output();
        let output = output.expect("vgdb comes with valgrind");
        assert!(output.status.success(), "vgdb {what}:\n{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Of one dump. Where `KEEP_COUNTS` names a directory, it is kept there for `callgrind_annotate`.
    pub fn total(&self, dump: &str, name: &str) -> f64 {
        let file = self.0.join(dump);
        let has_all = || fs::read_to_string(&file).is_ok_and(|text| text.contains("\ntotals:"));
        until("callgrind has written its counts", DUMP_DEADLINE, has_all);
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        if let Some(kept) = std::env::var_os("KEEP_COUNTS") {
            let name = name.replace([' ', ',', ':'], "_");
            fs::copy(&file, Path::new(&kept).join(format!("{name}-{dump}.out"))).expect("KEEP_COUNTS is a directory");
        }
        let totals = text.lines().filter_map(|line| line.strip_prefix("totals:")?.trim().parse::<f64>().ok());
        totals.reduce(|sum, more| sum + more).unwrap_or_else(|| panic!("callgrind counted nothing for {name}"))
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn embedded(rules: &'static str) -> Kind<'static> {
    Kind::Sluice { rules, redis: None }
}

pub fn measure() {
    let redis = Redis::start();
    let in_redis = |rules| Kind::Sluice { rules, redis: Some(redis.port) };
    let floor = Case { name: "floor", kind: Kind::Floor, asked: Asked::One, expect: "ok" };
    let case = |name, kind, asked, expect| Case { name, kind, asked, expect };
    let cases = [
        case("embedded, 1 rule", embedded("1.yaml"), Asked::One, "ok"),
        case("embedded, 3 rules", embedded("3.yaml"), Asked::Three, "ok"),
        case("embedded, refused", embedded("refused.yaml"), Asked::One, "any"),
        case("Redis, 1 rule", in_redis("1.yaml"), Asked::One, "ok"),
        case("Redis, 1 rule, 100k keys", in_redis("1.yaml"), Asked::OneOfMany, "ok"),
        case("Redis, 3 rules", in_redis("3.yaml"), Asked::Three, "ok"),
        case("Redis, 1 rule of 3 rates", in_redis("3-rates.yaml"), Asked::One, "ok"),
        case("Redis, refused", in_redis("refused.yaml"), Asked::One, "any"),
    ];
    let table = Table::new("Instructions for one decision", &["server", "instructions", "x floor"]);
    let of_floor = per_decision(&floor, WIDTH);
    table.row(&[floor.name.to_owned(), format!("{of_floor:.0}"), "1.00".to_owned()]);
    let row = |case: &Case<'_>, width| {
        let count = per_decision(case, width);
        table.row(&[case.name.to_owned(), format!("{count:.0}"), format!("{:.3}", count / of_floor)]);
    };
    cases.iter().for_each(|case| row(case, WIDTH));
    // Its batches are smaller.
    row(&case("Redis, 1 rule, one connection", in_redis("1.yaml"), Asked::One, "ok"), ONE_CONNECTION);
    if has_limitador() {
        let [in_memory, in_redis] = [None, Some(redis.port)].map(|redis| Kind::Limitador { redis });
        row(&case("limitador in memory, 1 rule", in_memory, Asked::One, "ok"), WIDTH);
        row(&case("limitador in memory, 3 rules", in_memory, Asked::Three, "ok"), WIDTH);
        row(&case("limitador in Redis, 1 rule", in_redis, Asked::One, "ok"), WIDTH);
        row(&case("limitador in Redis, 3 rules", in_redis, Asked::Three, "ok"), WIDTH);
    }
}

/// Of the engine and the embedded store by themselves, by name.
pub fn of_operations() -> Vec<(String, f64)> {
    let output = Command::new(program("decide")).output().expect("decide starts");
    assert!(output.status.success(), "decide:\n{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let row = |line: &str| {
        let (name, count) = line.rsplit_once(' ')?;
        Some((name.trim().to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

pub fn operations() {
    let table = Table::new("Instructions of one operation", &["operation", "instructions"]);
    for (name, count) in of_operations() {
        table.row(&[name, format!("{count:.0}")]);
    }
}

/// Where figures are kept that must not grow.
pub fn figures_file() -> &'static Path {
    Path::new("tests/bench/figures.txt")
}
