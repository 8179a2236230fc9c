//! Random rules, requests and times.

use super::*;

fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())].clone()
}

fn random_rate(rng: &mut Rng, algorithm: Algorithm) -> RateSpec {
    let numbers = [1, 2, 3, 5, 10, 17, 100, 1_000];
    let extremes = [0, 1, 999_983, 1 << 20, u32::MAX - 1, u32::MAX];
    let number = |rng: &mut Rng| if rng.u8(..8) == 0 { pick(rng, &extremes) } else { pick(rng, &numbers) };
    let period = loop {
        let unit = if rng.u8(..4) == 0 { pick(rng, &Unit::ALL) } else { pick(rng, &Unit::ALL[..3]) };
        let multiplier = if rng.u8(..12) == 0 { rng.u32(1..2_000_000) } else { pick(rng, &[1, 1, 1, 2, 5, 50]) };
        if let Ok(period) = Period::try_new(unit, multiplier) {
            break period;
        }
    };
    let burst = (algorithm.is_bucket() && rng.bool()).then(|| number(rng));
    RateSpec { requests: number(rng), period, burst, name: None }
}

fn random_quota(rng: &mut Rng) -> Arc<Quota> {
    loop {
        let algorithm = pick(rng, &Algorithm::ALL);
        let count = pick(rng, &[1, 1, 2, 3, 4]);
        let rates = (0..count).map(|_| random_rate(rng, algorithm)).collect();
        let on_over_limit = pick(rng, &[OnOverLimit::Charge, OnOverLimit::Spare]);
        if let Ok(quota) = Quota::try_new(algorithm, rates, on_over_limit, rng.bool()) {
            return Arc::new(quota);
        }
    }
}

/// The same counter under other rules: as after a reload, or with a limit that came with the request.
fn changed_quota(rng: &mut Rng, quota: &Quota) -> Arc<Quota> {
    let ticks = |quota: &Quota| quota.rates().iter().map(sluice::engine::quota::Rate::tick_us).collect::<Vec<_>>();
    loop {
        let mut rates: Vec<RateSpec> = Vec::new();
        for rate in quota.rates() {
            rates.push(RateSpec { period: rate.period(), ..random_rate(rng, quota.algorithm()) });
        }
        let is_longer = rng.u8(..4) == 0;
        if is_longer {
            rates.push(random_rate(rng, quota.algorithm()));
        }
        let on_over_limit = pick(rng, &[OnOverLimit::Charge, OnOverLimit::Spare]);
        match Quota::try_new(quota.algorithm(), rates, on_over_limit, rng.bool()) {
            Ok(changed) if is_longer || ticks(&changed) == ticks(quota) => return Arc::new(changed),
            _ => {}
        }
    }
}

/// A counter, and the quotas under which it is used: nearly always the first.
pub struct Counter {
    key: String,
    pub quotas: Vec<Arc<Quota>>,
}

pub fn random_counters(rng: &mut Rng, session: u64) -> Vec<Counter> {
    let counter = |index: usize| {
        let quota = random_quota(rng);
        let mut quotas = vec![quota.clone(); 12];
        quotas.push(changed_quota(rng, &quota));
        Counter { key: format!("{{test}}{session}/{index}"), quotas }
    };
    (0..10).map(counter).collect()
}

fn random_hits(rng: &mut Rng, quota: &Quota) -> Hits {
    let capacity = quota.rates()[0].capacity();
    match rng.u8(..100) {
        0..10 => Hits::take(0),
        10..55 => Hits::take(1),
        55..70 => Hits::take(rng.u64(0..=capacity)),
        70..80 => Hits::take(capacity.div_ceil(3)),
        80..84 => Hits::take(capacity + 1),
        84..86 => Hits::take(rng.u64(..)),
        86..88 => Hits::take(u64::MAX),
        88..97 => Hits::refund(rng.u64(0..=capacity)),
        97..99 => Hits::refund(1),
        _ => Hits::refund(u64::MAX),
    }
}

pub fn random_request(rng: &mut Rng, counters: &[Counter]) -> Asking {
    let chosen: Vec<&Counter> =
        (0..pick(rng, &[1, 1, 2, 3, 4])).map(|_| &counters[rng.usize(..counters.len())]).collect();
    let keys: Keys = chosen.iter().map(|counter| &*counter.key).collect();
    let mut checks: Vec<Check> = Vec::new();
    for counter in chosen {
        let slot = keys.iter().position(|key| key == counter.key).unwrap();
        let mut quota = pick(rng, &counter.quotas);
        // Keys tell rules apart whose numbers of rates differ, so one request never has both on one key.
        if let Some(other) =
            checks.iter().find(|check| check.slot == slot && check.quota.rates().len() != quota.rates().len())
        {
            quota = other.quota.clone();
        }
        checks.push(Check {
            slot,
            hits: random_hits(rng, &quota),
            mode: pick(rng, &[Mode::Enforce, Mode::Enforce, Mode::Shadow, Mode::Quota]),
            chained: !checks.is_empty() && rng.u8(..5) == 0,
            quota,
        });
    }
    Asking { checks, keys }
}

/// Some requests of a batch follow one that asks the same: of the same counters, or of others. Those are sent as one.
pub fn random_batch(rng: &mut Rng, counters: &[Counter]) -> Vec<Asking> {
    let mut batch: Vec<Asking> = Vec::new();
    for _ in 0..rng.usize(1..=8) {
        let asking = match (batch.last(), rng.u8(..8)) {
            (Some(last), 0) => Asking { checks: last.checks.clone(), keys: last.keys.iter().collect() },
            (Some(last), 1..=2) => {
                let beside: Vec<String> = last.keys.iter().map(|key| format!("{key}'")).collect();
                Asking { checks: last.checks.clone(), keys: beside.iter().map(String::as_str).collect() }
            }
            _ => random_request(rng, counters),
        };
        batch.push(asking);
    }
    batch
}

/// Still, forwards, backwards, and far both ways.
pub fn random_time(rng: &mut Rng, now_us: u64, counters: &[Counter], only_forwards: bool) -> u64 {
    let quota = &counters[rng.usize(..counters.len())].quotas[0];
    let rate = pick(rng, quota.rates());
    let step_us = match rng.u8(..10) {
        0..3 => 0,
        3..5 => rng.u64(0..2_000_000),
        5..9 => rng.u64(0..=rate.period_us() / rate.capacity().clamp(1, 100)),
        _ => rng.u64(0..=2 * quota.horizon_us()),
    };
    let moved_us = match rng.u8(..100) {
        // The end of a window, or one us to it.
        0..5 => now_us - now_us % rate.period_us() + rate.period_us() - rng.u64(0..2),
        5..12 if !only_forwards => now_us.saturating_sub(step_us),
        12 if !only_forwards => START_US,
        13 if !only_forwards => rng.u64(1..YEAR_2100_US),
        _ => now_us + step_us,
    };
    if only_forwards { moved_us.max(now_us) } else { moved_us.clamp(1, YEAR_2100_US) }
}
