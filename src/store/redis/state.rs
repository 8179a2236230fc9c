//! A counter's state as bytes, the same as `lua/decide.lua` reads and writes.
//!
//! ```text
//! byte 0      version 1 in the high half; 1: previous windows follow, 2: denials follow, 4: cells are wide
//! bytes 1-7   at_us
//! cells       one per rate, 4 bytes each, 7 if wide
//! previous    the same number, where any of them is above 0
//! denials     7 bytes, where above 0
//! ```
//!
//! All numbers are little endian. How many cells there are follows from the length. One rate at a level below 2^32 takes
//! 12 bytes, which is all that Redis can keep in its smallest string object. 10 per second after one hit at the beginning
//! of 2026: `10 00402046484706 40420f00`.
//!
//! The script is the only writer in a running service. This is for its replies, for tests and for whoever looks into a store, and
//! must not know how bytes travel.

use smallvec::SmallVec;

use crate::engine::{
    algorithm::{Cell, State},
    quota::{HITS_MAX, RATES_MAX},
};

const VERSION: u8 = 1;
const HAS_PREVIOUS: u8 = 1;
const HAS_DENIALS: u8 = 2;
const IS_WIDE: u8 = 4;
const NARROW: usize = 4;
const WIDE: usize = 7;
const HEAD: usize = 1 + WIDE;
/// No time and no number of a counter reaches it.
pub const EXACT_MAX: u64 = 1 << 53;

/// Why bytes are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// Not a version that this release reads; zero is what bytes of another kind may look like.
    Version(u8),
    /// Unknown marks, a length that no number of rates has, or a number that no counter reaches.
    Shape,
}

pub type Bytes = SmallVec<[u8; 32]>;

#[must_use]
pub fn encode(state: &State) -> Bytes {
    let most = |number: fn(&Cell) -> u64| state.cells.iter().map(number).max().unwrap_or(0);
    let (used, previous) = (most(|cell| cell.used), most(|cell| cell.previous));
    let is_wide = used.max(previous) > u64::from(u32::MAX);
    let width = if is_wide { WIDE } else { NARROW };
    let mark = |mark: u8, is_set: bool| if is_set { mark } else { 0 };

    let mut bytes = Bytes::new();
    let marks = mark(HAS_PREVIOUS, previous > 0) | mark(HAS_DENIALS, state.denials > 0) | mark(IS_WIDE, is_wide);
    bytes.push(VERSION << 4 | marks);
    push(&mut bytes, state.at_us, WIDE);
    for cell in &state.cells {
        push(&mut bytes, cell.used, width);
    }
    if previous > 0 {
        for cell in &state.cells {
            push(&mut bytes, cell.previous, width);
        }
    }
    if state.denials > 0 {
        push(&mut bytes, state.denials, WIDE);
    }
    bytes
}

/// # Errors
///
/// If the bytes are damaged, not ours, or of a newer release.
pub fn decode(bytes: &[u8]) -> Result<State, Damaged> {
    let (head, numbers) = bytes.split_at_checked(HEAD).ok_or(Damaged::Shape)?;
    let (version, marks) = (head[0] >> 4, head[0] & 0x0f);
    if version != VERSION {
        return Err(Damaged::Version(version));
    }
    if marks > HAS_PREVIOUS | HAS_DENIALS | IS_WIDE {
        return Err(Damaged::Shape);
    }
    let width = if marks & IS_WIDE == 0 { NARROW } else { WIDE };
    let denials_size = if marks & HAS_DENIALS == 0 { 0 } else { WIDE };
    let cells_size = numbers.len().checked_sub(denials_size).ok_or(Damaged::Shape)?;
    let (cells, denials) = numbers.split_at(cells_size);
    let step = if marks & HAS_PREVIOUS == 0 { width } else { 2 * width };
    let count = cells_size / step;
    if cells_size % step != 0 || !(1..=RATES_MAX).contains(&count) {
        return Err(Damaged::Shape);
    }
    let (used, previous) = cells.split_at(count * width);
    let cell = |index: usize| {
        let at = |numbers: &[u8]| numbers.chunks_exact(width).nth(index).map_or(0, number);
        Cell { used: at(used), previous: at(previous) }
    };
    let state = State { at_us: number(&head[1..]), cells: (0..count).map(cell).collect(), denials: number(denials) };
    let is_exact = state.cells.iter().all(|cell| cell.used < EXACT_MAX && cell.previous < EXACT_MAX);
    if state.at_us < EXACT_MAX && is_exact && state.denials <= HITS_MAX { Ok(state) } else { Err(Damaged::Shape) }
}

/// Takes the state of a counter of this many rates off the beginning of some bytes, which go on after it.
///
/// # Errors
///
/// If they do not begin with one.
pub fn take(bytes: &mut &[u8], rates: usize) -> Result<State, Damaged> {
    let marks = *bytes.first().ok_or(Damaged::Shape)?;
    let width = if marks & IS_WIDE == 0 { NARROW } else { WIDE };
    let cells = if marks & HAS_PREVIOUS == 0 { rates } else { 2 * rates };
    let denials_size = if marks & HAS_DENIALS == 0 { 0 } else { WIDE };
    let (value, rest) = bytes.split_at_checked(HEAD + cells * width + denials_size).ok_or(Damaged::Shape)?;
    *bytes = rest;
    decode(value)
}

fn push(bytes: &mut Bytes, number: u64, width: usize) {
    bytes.extend_from_slice(&number.to_le_bytes()[..width]);
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn state(at_us: u64, cells: &[(u64, u64)], denials: u64) -> State {
        let cells = cells.iter().map(|(used, previous)| Cell { used: *used, previous: *previous }).collect();
        State { at_us, cells, denials }
    }

    fn bytes_of(hex: &str) -> Vec<u8> {
        let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
        digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
    }

    /// These bytes are what the first release has left in stores. They must never be changed, only added to.
    #[test]
    fn a_later_release_reads_the_state_of_the_first() {
        let at_us = 1_767_225_600_000_000;
        let known = [
            ("10 00402046484706 40420f00", state(at_us, &[(1_000_000, 0)], 0)),
            ("11 00402046484706 03000000 08000000", state(at_us, &[(3, 8)], 0)),
            ("12 00402046484706 05000000 07000000000000", state(at_us, &[(5, 0)], 7)),
            ("14 00402046484706 00000000010000 01000000000000", state(at_us, &[(1 << 32, 0), (1, 0)], 0)),
            (
                "17 00402046484706 00000000010000 02000000000000 01000000000000 00000000000000 ffffffffffff0f",
                state(at_us, &[(1 << 32, 1), (2, 0)], HITS_MAX),
            ),
            ("10 ffffffffffff1f ffffffff", state((1 << 53) - 1, &[(u64::from(u32::MAX), 0)], 0)),
        ];
        for (hex, expected) in known {
            let bytes = bytes_of(hex);
            assert_eq!(decode(&bytes).as_ref(), Ok(&expected), "{hex}");
            assert_eq!(*encode(&expected), *bytes, "{hex}");
        }
    }

    #[test]
    fn a_state_is_taken_off_what_follows_it() {
        let states = [
            state(5, &[(1, 0)], 0),
            state(6, &[(1, 2)], 3),
            state(7, &[(1 << 40, 0)], 0),
            state(8, &[(1, 0), (2, 0), (3, 1)], 9),
        ];
        let bytes: Vec<u8> = states.iter().flat_map(encode).collect();
        let mut rest = &*bytes;
        for state in &states {
            assert_eq!(take(&mut rest, state.cells.len()).as_ref(), Ok(state));
        }
        assert_eq!(take(&mut rest, 1), Err(Damaged::Shape));
        assert_eq!(take(&mut &bytes[..11], 1), Err(Damaged::Shape));
    }

    #[test]
    fn one_rate_below_two_to_the_32_takes_twelve_bytes() {
        assert_eq!(encode(&state(1_767_225_600_000_000, &[(u64::from(u32::MAX), 0)], 0)).len(), 12);
    }

    #[test]
    fn what_is_not_a_state_is_refused() {
        let refused = [
            ("", Damaged::Shape),
            ("10 00000000000000", Damaged::Shape),
            ("10 00000000000000 000000", Damaged::Shape),
            ("10 00000000000020 00000000", Damaged::Shape),
            ("11 00000000000000 00000000", Damaged::Shape),
            ("12 00000000000000 000000", Damaged::Shape),
            ("12 00000000000000 00000000 00000000000010", Damaged::Shape),
            ("14 00000000000000 00000000000020", Damaged::Shape),
            ("18 00000000000000 00000000", Damaged::Shape),
            ("20 00000000000000 00000000", Damaged::Version(2)),
            ("7b 22636f756e7422 3a317d00", Damaged::Version(7)),
        ];
        for (hex, damage) in refused {
            assert_eq!(decode(&bytes_of(hex)), Err(damage), "{hex}");
        }
        let nine_rates = State { at_us: 0, cells: smallvec![Cell::default(); 9], denials: 0 };
        assert_eq!(decode(&encode(&nine_rates)), Err(Damaged::Shape));
    }
}
