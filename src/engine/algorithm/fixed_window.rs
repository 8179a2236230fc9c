//! Windows that begin at multiples of their length since 1970. The cell is the count of the current one.
//!
//! 3 per minute: hits at 0:10, 0:20 and 0:59 fit, a fourth waits until 1:00, where the count begins anew.

use super::Cell;
use crate::engine::quota::{FIXED_COUNT_MAX, Rate};

pub fn settle(rate: &Rate, at_us: u64, now_us: u64, cell: &mut Cell) {
    if at_us / rate.period_us() != now_us / rate.period_us() {
        cell.used = 0;
    }
}

pub fn used(cell: &Cell) -> u64 {
    cell.used
}

pub fn charge(cell: &mut Cell, hits: u64) {
    cell.used = (cell.used + hits).min(FIXED_COUNT_MAX);
}

pub fn refund(cell: &mut Cell, hits: u64) {
    cell.used -= cell.used.min(hits);
}

/// To the end of the window.
pub fn reset_us(rate: &Rate, now_us: u64) -> u64 {
    rate.period_us() - now_us % rate.period_us()
}

/// Until this many hits fit, where they do not fit now but can.
pub fn wait_us(rate: &Rate, now_us: u64) -> u64 {
    reset_us(rate, now_us)
}

/// When the cell is as good as absent.
pub fn idle_at_us(rate: &Rate, now_us: u64, cell: &Cell) -> u64 {
    if cell.used == 0 { now_us } else { now_us + reset_us(rate, now_us) }
}
