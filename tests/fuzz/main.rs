//! Whatever strangers send is answered or refused, and never panics, hangs or takes another's counter.
//!
//! The corpus is replayed, then mutated: a few hundred times by itself, for as long as `FUZZ_SECONDS` says in `tests/fuzz/run`. An
//! input that fails is written to `target/fuzz`, and belongs into the corpus once it is mended.

mod mutate;
mod peer;
mod structured;
mod targets;

use std::{
    cell::Cell,
    env, fs,
    panic::{self, AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    sync::Once,
    time::{Duration, Instant},
};

use fastrand::Rng;

use mutate::mutated;
use targets::{TARGETS, Target};

const CASES: u64 = 300;
/// No input of a few kilobytes is worth nearly as long.
const HANGS_AFTER: Duration = Duration::from_secs(20);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The inputs of a target, in the order of their names.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for directory in [root().join("tests/fuzz/corpus").join(target), grown().join(target)] {
        paths.extend(fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    if target == "rules" {
        // Good rules and bad ones, which are there already.
        for directory in ["tests/rules/good", "tests/rules/bad", "config/rules"] {
            paths
                .extend(fs::read_dir(root().join(directory)).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    paths.sort();
    let read = |path: PathBuf| fs::read(&path).ok().map(|bytes| (path, bytes));
    let corpus: Vec<_> = paths.into_iter().filter_map(read).collect();
    assert!(corpus.len() >= 3, "{target} has hardly a corpus");
    corpus
}

/// What a coverage-guided run has found, if there was one.
fn grown() -> PathBuf {
    root().join("target/fuzz/corpus")
}

/// Runs one input, and keeps it if it fails.
fn run(name: &str, target: Target, input: &[u8]) {
    let (began, before) = (Instant::now(), panics());
    let ran = catch_unwind(AssertUnwindSafe(|| target(input)));
    let hangs = began.elapsed() > HANGS_AFTER;
    // One that was caught on the way is a mistake, too.
    let panicked = panics() != before;
    if ran.is_err() || hangs || panicked {
        let directory = root().join("target/fuzz");
        fs::create_dir_all(&directory).expect("target can be written");
        let path = directory.join(format!("{name}-{:016x}", fingerprint(input)));
        fs::write(&path, input).expect("target can be written");
        eprintln!("{name} fails on {}", path.display());
    }
    if let Err(panic) = ran {
        resume_unwind(panic);
    }
    assert!(!hangs, "{name} took {:?}", began.elapsed());
    assert!(!panicked, "{name} has panicked");
}

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has panicked, whoever caught it.
fn panics() -> u64 {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            tell(info);
        }));
    });
    PANICS.get()
}

fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn every_input_of_the_corpus_is_answered_or_refused() {
    for (name, target) in TARGETS {
        corpus(name).iter().for_each(|(_, input)| run(name, *target, input));
    }
}

/// `FUZZ_SECONDS` is shared by the targets, `FUZZ_TARGET` is the only one, `FUZZ_SEED` begins elsewhere.
#[test]
fn every_mutation_of_the_corpus_is_answered_or_refused() {
    let given = |name: &str| env::var(name).ok();
    let seconds: Option<u64> = given("FUZZ_SECONDS").map(|text| text.parse().expect("FUZZ_SECONDS is a number"));
    let seed = given("FUZZ_SEED").map_or(1, |text| text.parse().expect("FUZZ_SEED is a number"));
    let only = given("FUZZ_TARGET");
    let targets: Vec<_> = TARGETS.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)).collect();
    assert!(!targets.is_empty(), "FUZZ_TARGET is none of them");
    for (name, target) in &targets {
        let corpus: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, input)| input).collect();
        let mut rng = Rng::with_seed(seed);
        let until = seconds
            .map(|seconds| Instant::now() + Duration::from_secs(seconds) / u32::try_from(targets.len()).unwrap());
        let mut cases = 0;
        while until.map_or(cases < CASES, |until| Instant::now() < until) {
            run(name, *target, &mutated(&mut rng, &corpus));
            cases += 1;
        }
        println!("{name}: {cases} cases of {} inputs", corpus.len());
    }
}
