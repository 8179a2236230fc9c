//! Token bucket and leaky bucket: a level that hits raise and time lowers.
//!
//! The cell is the level, in the units that [`Rate`] explains. An empty leaky bucket is a full token bucket.
//!
//! 2 per second, burst 3: a hit weighs 1,000,000 and 2 leak per microsecond. Three hits bring the level to 3,000,000,
//! which is full; a fourth would fit when 1,000,000 have leaked, 500,000 us later, and not one microsecond before.
//!
//! Ticks are counted from 1970 and not from the last visit, so that a caller who comes often leaks no less than one
//! who comes rarely.

use super::Cell;
use crate::engine::quota::Rate;

pub fn settle(rate: &Rate, at_us: u64, now_us: u64, cell: &mut Cell) {
    cell.used = cell.used.min(rate.level_max());
    let ticks = now_us / rate.tick_us() - at_us / rate.tick_us();
    if ticks >= ticks_to_leak(rate, cell.used) {
        cell.used = 0;
    } else {
        cell.used -= ticks * rate.leak();
    }
}

/// In whole hits, rounded up.
pub fn used(rate: &Rate, cell: &Cell) -> u64 {
    cell.used.div_ceil(rate.weight())
}

/// With `charge`, hits that do not fit put the bucket into debt, by one burst at the most.
pub fn charge(rate: &Rate, cell: &mut Cell, hits: u64) {
    let hits = hits.min(rate.level_max() / rate.weight());
    cell.used += (hits * rate.weight()).min(rate.level_max().saturating_sub(cell.used));
}

pub fn refund(rate: &Rate, cell: &mut Cell, hits: u64) {
    let hits = hits.min(rate.level_max() / rate.weight());
    cell.used -= cell.used.min(hits * rate.weight());
}

/// To a full token bucket, which is an empty leaky one.
pub fn reset_us(rate: &Rate, now_us: u64, cell: &Cell) -> u64 {
    us_to_leak(rate, now_us, cell.used)
}

/// Until this many hits fit, where they do not fit now but can.
pub fn wait_us(rate: &Rate, now_us: u64, cell: &Cell, hits: u64) -> u64 {
    us_to_leak(rate, now_us, cell.used - (rate.capacity() - hits) * rate.weight())
}

/// When the cell is as good as absent.
pub fn idle_at_us(rate: &Rate, now_us: u64, cell: &Cell) -> u64 {
    now_us + us_to_leak(rate, now_us, cell.used)
}

fn ticks_to_leak(rate: &Rate, level: u64) -> u64 {
    level.div_ceil(rate.leak())
}

/// From now to the beginning of the tick in which this much has leaked.
fn us_to_leak(rate: &Rate, now_us: u64, level: u64) -> u64 {
    if level == 0 {
        return 0;
    }
    ticks_to_leak(rate, level) * rate.tick_us() - now_us % rate.tick_us()
}
