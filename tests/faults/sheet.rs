//! The paper of one row: what was measured beside what is promised, one line for each figure, as a Markdown table.

use std::{
    cell::{Cell, RefCell},
    fmt::Display,
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::load::{Call, Load},
    history,
    oracle::{self, Line},
};

/// How often a row that takes long says that it is still at it.
const REMIND: Duration = Duration::from_secs(15);

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The share of the CPUs that the host may take for others before times say more of it than of sluice. A hundredth shows in a p99.
const CALM: f64 = 0.01;

/// What came of a row.
pub struct Outcome {
    /// All that is judged.
    pub holds: bool,
    /// What does not hold is a time, or a share of calls in time, and the host took what it would have needed.
    pub may_be_the_host: bool,
}

pub struct Sheet {
    name: &'static str,
    full: bool,
    began: Instant,
    holds: Cell<bool>,
    /// All that must hold on any machine does.
    is_sound: Cell<bool>,
    machine: Machine,
    /// Shown when the row is done, because others may run beside it.
    table: RefCell<String>,
}

impl Sheet {
    pub fn open(name: &'static str, fault: &str, full: bool) -> Self {
        let table = format!("\n{name}: {fault}\n\n| fault | figure | measured | bound | |\n|---|---|---|---|---|\n");
        Self {
            name,
            full,
            began: Instant::now(),
            holds: Cell::new(true),
            is_sound: Cell::new(true),
            machine: Machine::watch(),
            table: RefCell::new(table),
        }
    }

    /// So long in the full form, so long in the short one, in seconds.
    pub fn span(&self, full: f64, short: f64) -> Duration {
        Duration::from_secs_f64(if self.full { full } else { short })
    }

    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Of the store: as it is by default, and in the short form what that is on a busy machine.
    pub fn timeout(&self) -> (&'static str, &'static str) {
        ("REDIS_TIMEOUT", if self.full { "10ms" } else { "50ms" })
    }

    /// Says what happens now.
    pub fn step(&self, what: &str) {
        eprintln!("{:>12} {:>6.1} s  {what}", self.name, self.began.elapsed().as_secs_f64());
    }

    /// Lets the load run for a while.
    pub fn run(&self, load: &Load, span: Duration) {
        let end = Instant::now() + span;
        loop {
            let next = Instant::now() + REMIND;
            load.run_until(next.min(end));
            if next >= end {
                return;
            }
            self.step(&format!("{} s to go", end.saturating_duration_since(Instant::now()).as_secs()));
        }
    }

    /// Ends a load and writes what it was answered: to `target/faults/ROW-PART.jsonl`.
    pub fn record(&self, load: Load, part: &str) -> Vec<Call> {
        let calls = load.stop();
        history::write(&self.history(part), &calls);
        calls
    }

    /// What was recorded, for the oracle.
    pub fn recorded(&self, part: &str) -> Vec<Line> {
        oracle::read(&self.history(part))
    }

    fn history(&self, part: &str) -> PathBuf {
        history::path(&format!("{}-{part}", self.name))
    }

    /// A time that one of a hundred calls may exceed, or that is awaited once.
    pub fn at_most(&self, fault: &str, figure: &str, measured: Duration, bound: Duration) {
        self.judge_where(
            self.full,
            fault,
            figure,
            &shown(measured),
            &format!("<= {}", shown(bound)),
            measured <= bound,
        );
    }

    /// A share of calls.
    pub fn share_within(&self, fault: &str, figure: &str, measured: usize, of: usize, permille: usize) {
        let share = permille as f64 / 10.0;
        let holds = measured * 1_000 <= permille * of;
        self.judge_where(self.full, fault, figure, &measured, &format!("<= {share} %"), holds);
    }

    /// How many of something there were.
    pub fn count(&self, fault: &str, figure: &str, measured: usize, at_most: usize) {
        self.judge(fault, figure, &measured, &format!("<= {at_most}"), measured <= at_most);
    }

    /// Anything else that holds or does not, on any machine.
    pub fn judge(&self, fault: &str, figure: &str, measured: &impl Display, bound: &str, holds: bool) {
        self.line(fault, figure, &measured.to_string(), bound, if holds { "ok" } else { "BROKEN" });
        self.holds.set(self.holds.get() && holds);
        self.is_sound.set(self.is_sound.get() && holds);
    }

    /// What holds at full length only, and is no time.
    pub fn judge_in_full(&self, fault: &str, figure: &str, measured: &impl Display, bound: &str, holds: bool) {
        self.judge_where(self.full, fault, figure, measured, bound, holds);
    }

    fn judge_where(
        &self,
        is_judged: bool,
        fault: &str,
        figure: &str,
        measured: &impl Display,
        bound: &str,
        holds: bool,
    ) {
        let mark = match (holds, is_judged) {
            (true, _) => "ok",
            (false, true) => "BROKEN",
            (false, false) => "not judged",
        };
        self.line(fault, figure, &measured.to_string(), bound, mark);
        self.holds.set(self.holds.get() && (holds || !is_judged));
    }

    fn line(&self, fault: &str, figure: &str, measured: &str, bound: &str, mark: &str) {
        let line = format!("| {fault} | {figure} | {measured} | {bound} | {mark} |\n");
        self.table.borrow_mut().push_str(&line);
    }

    pub fn panicked(&self) {
        self.judge(self.name, "ran to its end", &"no: see the panic above", "yes", false);
    }

    pub fn close(self) -> Outcome {
        let taken = self.machine.taken();
        let late = shown(self.machine.p99());
        self.step(&format!(
            "done; who only waits was late by {late} (p99), the host took {:.1} % of the CPUs",
            taken * 100.0
        ));
        println!("{}", self.table.take().trim_end());
        Outcome { holds: self.holds.get(), may_be_the_host: self.is_sound.get() && taken > CALM }
    }
}

/// With three digits that mean something.
pub fn shown(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1_000.0;
    match ms {
        ..10.0 => format!("{ms:.2} ms"),
        ..1_000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.2} s", ms / 1_000.0),
    }
}

/// How late the machine itself is: somebody who waits for a millisecond, again and again, and does nothing else. And how much of its
/// CPUs the host has given to others while somebody here wanted them.
struct Machine {
    late: Arc<Mutex<Vec<Duration>>>,
    since: CpuTimes,
    /// Until this is dropped.
    _watching: mpsc::Sender<()>,
}

impl Machine {
    fn watch() -> Self {
        const WAIT: Duration = millis(1);
        let (watching, over) = mpsc::channel::<()>();
        let late = Arc::new(Mutex::new(Vec::new()));
        thread::spawn({
            let late = late.clone();
            move || loop {
                let began = Instant::now();
                if over.recv_timeout(WAIT) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
                late.lock().expect("nobody panics here").push(began.elapsed().saturating_sub(WAIT));
            }
        });
        Self { late, since: CpuTimes::now(), _watching: watching }
    }

    fn taken(&self) -> f64 {
        let now = CpuTimes::now();
        let all = now.all.saturating_sub(self.since.all).max(1);
        now.taken.saturating_sub(self.since.taken) as f64 / all as f64
    }

    fn p99(&self) -> Duration {
        let mut late = self.late.lock().expect("nobody panics here").clone();
        late.sort_unstable();
        late.get(late.len() * 99 / 100).copied().unwrap_or_default()
    }
}

/// Of all CPUs since the machine was started, in ticks.
struct CpuTimes {
    all: u64,
    taken: u64,
}

impl CpuTimes {
    fn now() -> Self {
        // cpu  user nice system idle iowait irq softirq steal guest guest_nice: guests are in user already.
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|ticks| ticks.parse().ok()).collect();
        Self { all: ticks.iter().sum(), taken: ticks.get(7).copied().unwrap_or(0) }
    }
}
