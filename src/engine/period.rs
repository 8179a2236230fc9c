//! Lengths of time as rules write them.

use std::fmt;

use super::quota::InvalidQuota;

pub(super) const SECOND_US: u64 = 1_000_000;
pub(super) const YEAR_US: u64 = 365 * 86_400 * SECOND_US;
/// An instant before 2100 plus three periods (a clock set back by one, a window and the next) is still an exact instant.
const PERIOD_MAX_US: u64 = 50 * YEAR_US;

/// A unit of time as the rules and the wire name it. A month is 30 days and a year 365, whatever the calendar says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    pub const ALL: [Unit; 7] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    #[must_use]
    pub fn seconds(self) -> u64 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week => 604_800,
            Unit::Month => 2_592_000,
            Unit::Year => 31_536_000,
        }
    }

    /// The name in rules, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// Case-insensitive.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}

/// A number of units: 5 minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    unit: Unit,
    multiplier: u32,
}

impl Period {
    pub fn try_new(unit: Unit, multiplier: u32) -> Result<Self, InvalidQuota> {
        if multiplier == 0 {
            return Err(InvalidQuota::ZeroMultiplier);
        }
        if unit.seconds() * u64::from(multiplier) > PERIOD_MAX_US / SECOND_US {
            return Err(InvalidQuota::PeriodTooLong { unit, multiplier });
        }
        Ok(Self { unit, multiplier })
    }

    #[must_use]
    pub fn unit(self) -> Unit {
        self.unit
    }

    #[must_use]
    pub fn multiplier(self) -> u32 {
        self.multiplier
    }

    #[must_use]
    pub fn seconds(self) -> u64 {
        self.unit.seconds() * u64::from(self.multiplier)
    }

    #[must_use]
    pub fn micros(self) -> u64 {
        self.seconds() * SECOND_US
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.multiplier {
            1 => f.write_str(self.unit.name()),
            many => write!(f, "{many} {}s", self.unit.name()),
        }
    }
}
