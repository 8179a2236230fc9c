//! A window that moves with the clock, estimated from two fixed ones: what was counted in the current one, and the
//! share of the previous one that the moving window still covers, rounded up.
//!
//! 10 per minute: 8 hits in the previous minute, 3 in this one, 15 s into it. The moving window still covers 45/60 of
//! the previous minute: 3 + 8 x 45/60 = 9. One more fits.
//!
//! Time is counted in millionths of the window, so that count x parts stays an exact integer.

use super::Cell;
use crate::engine::quota::{Rate, SLIDING_COUNT_MAX, SLIDING_PARTS};

/// No count is ever above the highest; one that is was not written by us, and would not stay exact.
pub fn settle(rate: &Rate, at_us: u64, now_us: u64, cell: &mut Cell) {
    cell.used = cell.used.min(SLIDING_COUNT_MAX);
    cell.previous = cell.previous.min(SLIDING_COUNT_MAX);
    let passed = now_us / rate.period_us() - at_us / rate.period_us();
    if passed >= 1 {
        cell.previous = if passed == 1 { cell.used } else { 0 };
        cell.used = 0;
    }
}

pub fn used(rate: &Rate, now_us: u64, cell: &Cell) -> u64 {
    cell.used + (cell.previous * (SLIDING_PARTS - part(rate, now_us))).div_ceil(SLIDING_PARTS)
}

pub fn charge(cell: &mut Cell, hits: u64) {
    cell.used = (cell.used + hits).min(SLIDING_COUNT_MAX);
}

/// Gives back what was taken in the current window, then what is left of the previous one: a refund that comes just
/// after the end of a window is not lost.
pub fn refund(cell: &mut Cell, hits: u64) {
    let current = cell.used.min(hits);
    cell.used -= current;
    cell.previous -= cell.previous.min(hits - current);
}

/// To the end of the current window.
pub fn reset_us(rate: &Rate, now_us: u64) -> u64 {
    rate.period_us() - now_us % rate.period_us()
}

/// Until this many hits fit, where they do not fit now but can.
///
/// Either enough of the previous window leaves before the current one ends, or the current one has become the
/// previous one and enough of it leaves.
pub fn wait_us(rate: &Rate, now_us: u64, cell: &Cell, hits: u64) -> u64 {
    let room = rate.capacity() - hits;
    let window_us = now_us - now_us % rate.period_us();
    let at_us = if cell.used <= room {
        window_us + part_us(rate, first_part_with(cell.previous, room - cell.used))
    } else {
        window_us + rate.period_us() + part_us(rate, first_part_with(cell.used, room))
    };
    at_us - now_us
}

/// When the cell is as good as absent: its hits leave with the window after theirs.
pub fn idle_at_us(rate: &Rate, now_us: u64, cell: &Cell) -> u64 {
    let end_us = now_us + reset_us(rate, now_us);
    match (cell.used, cell.previous) {
        (0, 0) => now_us,
        (0, _) => end_us,
        _ => end_us + rate.period_us(),
    }
}

/// How many parts of the current window have passed.
fn part(rate: &Rate, now_us: u64) -> u64 {
    now_us % rate.period_us() / part_us(rate, 1)
}

fn part_us(rate: &Rate, parts: u64) -> u64 {
    parts * (rate.period_us() / SLIDING_PARTS)
}

/// The first part of a window in which at most `room` of the `previous` hits are still covered.
fn first_part_with(previous: u64, room: u64) -> u64 {
    if previous <= room { 0 } else { SLIDING_PARTS - room * SLIDING_PARTS / previous }
}
