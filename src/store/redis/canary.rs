//! Keys of our own, for whoever wants to know whether a node decides: no caller's counter is ever touched, and each key is gone
//! a moment later.

use std::{ops::RangeInclusive, sync::Arc};

use super::lane::Ask;
use crate::engine::{
    algorithm::{Check, Mode},
    key,
    plan::Keys,
    quota::{Period, Quota, Unit},
    request::Hits,
};

/// Where slots do not matter, or none is known.
pub const ANY_SLOT: RangeInclusive<u16> = 0..=u16::MAX;

/// A key that lives in one of these slots; any key where none is known.
#[must_use]
pub fn key_in(prefix: &str, slots: &RangeInclusive<u16>, name: &str) -> String {
    let key = |number: u32| format!("{prefix}{{sluice-{number}}}{name}");
    // Each number is a slot as if by chance: a single slot is met within a few times their number.
    (0..500_000).map(key).find(|name| slots.contains(&key::slot(name))).unwrap_or_else(|| key(0))
}

/// One of a thousand per second, so that the key is gone soon after.
#[must_use]
pub fn ask(key: &str) -> Ask {
    let quota = Period::try_new(Unit::Second, 1).and_then(|period| Quota::fixed_window(1_000, period));
    let quota = Arc::new(quota.expect("a thousand per second is a quota"));
    let check = Check { quota, slot: 0, hits: Hits::ONE, mode: Mode::Shadow, chained: false };
    Ask::Part(Arc::new((vec![check], [key].into_iter().collect::<Keys>())))
}
