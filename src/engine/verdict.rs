//! From decisions to a verdict: the second pure half around the store's answer.

use smallvec::SmallVec;

use super::{
    algorithm::{Decision, Retry},
    plan::{Limited, Match, Plan},
    quota::{Period, Quota},
    request::USUAL,
};

impl Plan {
    /// Reads the verdict off the decisions, one for each check.
    #[must_use]
    pub fn conclude(&self, decisions: &[Decision]) -> Verdict<'_> {
        let statuses: SmallVec<[Status<'_>; USUAL]> =
            self.matches.iter().map(|matched| self.status(matched, decisions)).collect();
        let (mut enforcing_refuses, mut has_quota, mut quota_fits) = (false, false, false);
        for (matched, status) in self.matches.iter().zip(&statuses) {
            let Match::Limited(limited) = matched else { continue };
            let is_over = status.code == Code::OverLimit;
            if self.is_quota(limited) {
                (has_quota, quota_fits) = (true, quota_fits || !is_over);
            } else {
                enforcing_refuses |= is_over;
            }
        }
        let quota_refuses = !self.quota_passes && has_quota && !quota_fits;
        let refused = quota_refuses || enforcing_refuses;
        let code = if refused && !self.shadow { Code::OverLimit } else { Code::Ok };
        let is_quota = |index: usize| matches!(&self.matches[index], Match::Limited(limited) if self.is_quota(limited));
        Verdict {
            code,
            masked: refused && self.shadow,
            retry_after_s: match code {
                Code::Ok => Some(0),
                Code::OverLimit => retry_after_s(&statuses, is_quota, quota_refuses),
            },
            described: described(&statuses, is_quota),
            statuses,
        }
    }

    fn status<'p>(&'p self, matched: &'p Match, decisions: &[Decision]) -> Status<'p> {
        let limited = match matched {
            Match::Free => return Status::free(0),
            Match::Unlimited(_) => return Status::free(u32::MAX),
            Match::Limited(limited) => limited,
        };
        let governing = self.governing(limited, decisions);
        let decision = &decisions[governing];
        let quota: &Quota = &self.checks[governing].quota;
        let rate = &quota.rates()[decision.rate];
        let rule_name = limited.rule.as_ref().and_then(|rule| rule.name.as_deref());
        let retry_s = match decision.retry {
            Retry::Now => Some(1),
            Retry::After(wait_us) => Some(whole_seconds(wait_us)),
            Retry::Never => None,
        };
        let over = !decision.fits;
        if !decision.counted {
            let code = if over && !limited.is_shadow() { Code::OverLimit } else { Code::Ok };
            return Status { code, reset_s: over.then_some(1), retry_s, ..Status::free(0) };
        }
        let reset_s = whole_seconds(decision.reset_us);
        Status {
            code: if over && !limited.is_shadow() { Code::OverLimit } else { Code::Ok },
            limit: Some(Shown {
                requests: rate.requests(),
                period: rate.period(),
                name: rule_name.or(rate.name()).or(limited.plan_name(governing)),
            }),
            remaining: u32::try_from(decision.remaining).unwrap_or(u32::MAX),
            reset_s: Some(if over && quota.algorithm().is_bucket() { retry_s.unwrap_or(reset_s) } else { reset_s }),
            retry_s,
        }
    }

    /// Which check of a descriptor speaks for it: the longest wait when refused, the least room when admitted.
    #[must_use]
    pub fn governing(&self, limited: &Limited, decisions: &[Decision]) -> usize {
        let mut governing = limited.checks.start;
        for index in limited.checks.clone().skip(1) {
            let (best, other) = (&decisions[governing], &decisions[index]);
            let governs = match (best.fits, other.fits) {
                (true, true) => other.remaining < best.remaining,
                (false, false) => other.retry > best.retry,
                (best_fits, _) => best_fits,
            };
            if governs {
                governing = index;
            }
        }
        governing
    }
}

/// Rounded up, at least 1, so that a caller who waits as long as told is not refused again.
fn whole_seconds(us: u64) -> u32 {
    u32::try_from(us.div_ceil(1_000_000)).unwrap_or(u32::MAX).max(1)
}

/// When every enforcing limit fits again, and at least one of the quota limits. `None` if that never happens.
fn retry_after_s(statuses: &[Status<'_>], is_quota: impl Fn(usize) -> bool, quota_refuses: bool) -> Option<u32> {
    let over = statuses.iter().enumerate().filter(|(_, status)| status.code == Code::OverLimit);
    let (quota, enforcing): (SmallVec<[_; 4]>, SmallVec<[_; 4]>) = over.partition(|(index, _)| is_quota(*index));
    let longest = |longest: u32, (_, status): &(usize, &Status<'_>)| Some(status.retry_s?.max(longest));
    let enforcing_s = enforcing.iter().try_fold(0, longest)?;
    if !quota_refuses {
        return Some(enforcing_s);
    }
    let quota_s = quota.iter().filter_map(|(_, status)| status.retry_s).min()?;
    Some(enforcing_s.max(quota_s))
}

/// The status that the rate limit headers describe: the least remaining, the first of equals; but one that refuses on
/// its own takes the place of whatever was chosen before it.
fn described(statuses: &[Status<'_>], is_quota: impl Fn(usize) -> bool) -> Option<usize> {
    let mut chosen: Option<usize> = None;
    for (index, status) in statuses.iter().enumerate().filter(|(_, status)| status.limit.is_some()) {
        let refuses = status.code == Code::OverLimit && !is_quota(index);
        if refuses || chosen.is_none_or(|chosen| status.remaining < statuses[chosen].remaining) {
            chosen = Some(index);
        }
    }
    chosen
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Ok,
    OverLimit,
}

/// The limit that a status speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown<'p> {
    pub requests: u32,
    pub period: Period,
    pub name: Option<&'p str>,
}

/// The answer to one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status<'p> {
    pub code: Code,
    pub limit: Option<Shown<'p>>,
    pub remaining: u32,
    /// To the end of the window or to a full bucket; when refused by a bucket, until the hits would fit.
    pub reset_s: Option<u32>,
    /// Until the hits would fit, if they ever can.
    pub retry_s: Option<u32>,
}

impl Status<'_> {
    #[must_use]
    pub fn free(remaining: u32) -> Self {
        Self { code: Code::Ok, limit: None, remaining, reset_s: None, retry_s: None }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict<'p> {
    pub code: Code,
    /// Would have been refused, but the whole service is in shadow mode.
    pub masked: bool,
    /// When a refused request is worth trying again, if it ever is; 0 if it is not refused.
    pub retry_after_s: Option<u32>,
    /// Which status the rate limit headers describe.
    pub described: Option<usize>,
    pub statuses: SmallVec<[Status<'p>; USUAL]>,
}
