//! What is asked: a domain, and descriptors with the hits each of them takes or gives back.
//!
//! A request borrows its text from whatever it was parsed from. It is well formed by construction: the doors refuse
//! what is not (an empty domain, an undefined override unit) before a [`Request`] exists.

use smallvec::SmallVec;

use super::quota::{HITS_MAX, Quota};

/// One (key, value) pair of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub key: &'a str,
    pub value: &'a str,
}

/// How much a descriptor takes from its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Take this many. `Take(0)` is a look: it charges nothing.
    Take(u64),
    /// Give this many back.
    Refund(u64),
}

impl Hits {
    pub const ONE: Hits = Hits::Take(1);

    /// Hits beyond [`HITS_MAX`] count as `HITS_MAX`: no limit is that high, and sums stay exact.
    #[must_use]
    pub fn take(hits: u64) -> Self {
        Hits::Take(hits.min(HITS_MAX))
    }

    #[must_use]
    pub fn refund(hits: u64) -> Self {
        Hits::Refund(hits.min(HITS_MAX))
    }

    /// The hits that are taken: none for a refund.
    #[must_use]
    pub fn taken(self) -> u64 {
        match self {
            Hits::Take(hits) => hits,
            Hits::Refund(_) => 0,
        }
    }
}

/// An ordered list of entries, which names a counter.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    pub entries: SmallVec<[Entry<'a>; 3]>,
    pub hits: Hits,
    /// A limit that comes with the request and takes the place of the configured one.
    pub override_quota: Option<std::sync::Arc<Quota>>,
}

/// One question.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub domain: &'a str,
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
}
