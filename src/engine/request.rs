//! What is asked: a domain, and descriptors with the hits each of them takes or gives back.
//!
//! A request borrows its text from whatever it was parsed from. It is well formed by construction: the doors refuse
//! what is not (an empty domain, an undefined override unit) before a [`Request`] exists.

use std::fmt;

use smallvec::SmallVec;

use super::quota::{HITS_MAX, Quota};

/// More than any route has; each costs a counter in the store.
pub const DESCRIPTORS_MAX: usize = 256;
/// Twice as deep as rules can be written.
pub const ENTRIES_MAX: usize = 64;
/// Names come from the configuration of a proxy, and are short.
pub const KEY_BYTES_MAX: usize = 1 << 10;
/// Values come from headers, of which Envoy takes 60 KiB in all. A value that a client can send must not be refused here:
/// where Envoy lets requests through that were answered with an error, a long header would be a way around every limit.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

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

/// As many descriptors, and checks, as most requests have at most: room is made for so many without asking the allocator.
pub const USUAL: usize = 3;

/// One question.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub domain: &'a str,
    pub descriptors: SmallVec<[Descriptor<'a>; USUAL]>,
}

impl Request<'_> {
    /// Refuses a request of which a part is larger than any proxy makes it.
    pub fn refuse_excess(&self) -> Result<(), Excess> {
        within(self.domain.len(), KEY_BYTES_MAX, || Part::Domain)?;
        within(self.descriptors.len(), DESCRIPTORS_MAX, || Part::Descriptors)?;
        for (descriptor, asked) in self.descriptors.iter().enumerate() {
            within(asked.entries.len(), ENTRIES_MAX, || Part::Entries { descriptor })?;
            for (entry, Entry { key, value }) in asked.entries.iter().enumerate() {
                within(key.len(), KEY_BYTES_MAX, || Part::Key { descriptor, entry })?;
                within(value.len(), VALUE_BYTES_MAX, || Part::Value { descriptor, entry })?;
            }
        }
        Ok(())
    }
}

fn within(size: usize, max: usize, part: impl FnOnce() -> Part) -> Result<(), Excess> {
    if size <= max { Ok(()) } else { Err(Excess { part: part(), size, max }) }
}

/// What of a request is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    pub part: Part,
    pub size: usize,
    pub max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Domain,
    Descriptors,
    Entries { descriptor: usize },
    Key { descriptor: usize, entry: usize },
    Value { descriptor: usize, entry: usize },
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, size, max } = self;
        match part {
            Part::Domain => write!(f, "domain has {size} bytes, at most {max} are possible"),
            Part::Descriptors => {
                write!(f, "{size} descriptors in one request, at most {max} are possible: see `descriptors`")
            }
            Part::Entries { descriptor } => {
                write!(f, "descriptors[{descriptor}] has {size} entries, at most {max} are possible")
            }
            Part::Key { descriptor, entry } => {
                write!(f, "descriptors[{descriptor}].entries[{entry}].key has {size} bytes, at most {max} are possible")
            }
            Part::Value { descriptor, entry } => {
                write!(
                    f,
                    "descriptors[{descriptor}].entries[{entry}].value has {size} bytes, at most {max} are possible"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn excess(domain: &str, descriptors: usize, entries: usize, key: &str, value: &str) -> Option<String> {
        let entries: SmallVec<[Entry<'_>; 3]> = smallvec![Entry { key, value }; entries];
        let descriptor = Descriptor { entries, hits: Hits::ONE, override_quota: None };
        let request = Request { domain, descriptors: smallvec![descriptor; descriptors] };
        request.refuse_excess().err().map(|excess| excess.to_string())
    }

    #[test]
    fn a_request_is_taken_up_to_each_bound_and_refused_one_beyond_it_with_its_place() {
        let (key, value) = ("k".repeat(KEY_BYTES_MAX), "v".repeat(VALUE_BYTES_MAX));
        assert_eq!(excess(&key, DESCRIPTORS_MAX, ENTRIES_MAX, &key, &value), None);
        let says = |found: Option<String>, expected: &str| assert_eq!(found.as_deref(), Some(expected));
        says(excess(&format!("{key}k"), 1, 1, "k", "v"), "domain has 1025 bytes, at most 1024 are possible");
        says(
            excess("d", DESCRIPTORS_MAX + 1, 1, "k", "v"),
            "257 descriptors in one request, at most 256 are possible: see `descriptors`",
        );
        says(excess("d", 2, ENTRIES_MAX + 1, "k", "v"), "descriptors[0] has 65 entries, at most 64 are possible");
        let long = format!("{key}k");
        says(excess("d", 1, 1, &long, "v"), "descriptors[0].entries[0].key has 1025 bytes, at most 1024 are possible");
        let long = format!("{value}v");
        says(
            excess("d", 1, 1, "k", &long),
            "descriptors[0].entries[0].value has 65537 bytes, at most 65536 are possible",
        );
    }
}
