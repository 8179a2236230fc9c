//! From the wire of the native API to a question.

use smallvec::{SmallVec, smallvec};

use crate::{
    engine::{
        quota::HITS_MAX,
        request::{Descriptor, Entry, Excess, Hits, Part, Request},
    },
    grpc::proto::ratelimiter::v1::Entry as WireEntry,
};

/// Where a caller names no domain.
const DEFAULT_DOMAIN: &str = "default";

/// Why a request is no question. Each names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("limit_key must not be empty: set `limit_key` to prefix:rest, or give `entries`")]
    EmptyKey,
    #[error("limit_key is {0:?}, which has no prefix: write prefix:rest")]
    EmptyPrefix(String),
    #[error("limit_key and entries are both given: set one of them")]
    KeyAndEntries,
    #[error("entries[{0}].key must not be empty")]
    EmptyEntryKey(usize),
    #[error("cost is {0}, but must not be negative: use 0 for a look, 1 or more to take")]
    NegativeCost(i64),
    #[error("cost is {0}, which is more than any limit can hold: use {HITS_MAX} at most")]
    AbsurdCost(i64),
    #[error("{part} has {} {unit}, at most {} are possible", excess.size, excess.max)]
    Excess { part: String, unit: &'static str, excess: Excess },
}

impl BadRequest {
    /// In the words of this API.
    fn excess(excess: Excess, has_entries: bool) -> Self {
        let (part, unit) = match excess.part {
            Part::Domain | Part::Descriptors => ("domain".to_owned(), "bytes"),
            Part::Entries { .. } => ("entries".to_owned(), "entries"),
            Part::Key { entry, .. } if has_entries => (format!("entries[{entry}].key"), "bytes"),
            Part::Value { entry, .. } if has_entries => (format!("entries[{entry}].value"), "bytes"),
            Part::Key { .. } => ("the prefix of limit_key".to_owned(), "bytes"),
            Part::Value { .. } => ("limit_key behind its prefix".to_owned(), "bytes"),
        };
        Self::Excess { part, unit, excess }
    }
}

pub fn hits(cost: Option<i64>) -> Result<Hits, BadRequest> {
    let cost = cost.unwrap_or(1);
    match u64::try_from(cost) {
        Ok(hits) if hits <= HITS_MAX => Ok(Hits::Take(hits)),
        Ok(_) => Err(BadRequest::AbsurdCost(cost)),
        Err(_) => Err(BadRequest::NegativeCost(cost)),
    }
}

pub fn question<'a>(
    domain: &'a str,
    limit_key: &'a str,
    entries: &'a [WireEntry],
    hits: Hits,
) -> Result<Request<'a>, BadRequest> {
    let has_entries = !entries.is_empty();
    let entries: SmallVec<[Entry<'a>; 3]> = match (limit_key, entries) {
        ("", []) => return Err(BadRequest::EmptyKey),
        (key, []) => match key.split_once(':') {
            // Cut, because it comes from the caller.
            Some(("", _)) => return Err(BadRequest::EmptyPrefix(key.chars().take(40).collect())),
            Some((prefix, rest)) => smallvec![Entry { key: prefix, value: rest }],
            None => smallvec![Entry { key, value: "" }],
        },
        ("", entries) => {
            if let Some(index) = entries.iter().position(|entry| entry.key.is_empty()) {
                return Err(BadRequest::EmptyEntryKey(index));
            }
            entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect()
        }
        _ => return Err(BadRequest::KeyAndEntries),
    };
    let domain = if domain.is_empty() { DEFAULT_DOMAIN } else { domain };
    let request = Request { domain, descriptors: smallvec![Descriptor { entries, hits, override_quota: None }] };
    request.refuse_excess().map_err(|excess| BadRequest::excess(excess, has_entries))?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(limit_key: &str) -> Result<Vec<(String, String)>, BadRequest> {
        let question = question("", limit_key, &[], Hits::ONE)?;
        assert_eq!(question.domain, "default");
        let pair = |entry: &Entry<'_>| (entry.key.to_owned(), entry.value.to_owned());
        Ok(question.descriptors[0].entries.iter().map(pair).collect())
    }

    fn pair(key: &str, value: &str) -> Vec<(String, String)> {
        vec![(key.to_owned(), value.to_owned())]
    }

    #[test]
    fn only_the_first_colon_of_a_limit_key_splits() {
        assert_eq!(pairs("user:alice"), Ok(pair("user", "alice")));
        assert_eq!(pairs("ip:::1"), Ok(pair("ip", "::1")));
        assert_eq!(pairs("login"), Ok(pair("login", "")));
        assert_eq!(pairs("login:"), Ok(pair("login", "")));
    }

    #[test]
    fn a_key_that_names_nothing_is_refused_by_its_field() {
        assert_eq!(pairs(""), Err(BadRequest::EmptyKey));
        assert_eq!(pairs(":alice"), Err(BadRequest::EmptyPrefix(":alice".to_owned())));
        let entry = |key: &str| WireEntry { key: key.to_owned(), value: String::new() };
        let of = |key, entries: &[WireEntry]| question("", key, entries, Hits::ONE).map(|_| ());
        assert_eq!(of("", &[entry("a"), entry("")]), Err(BadRequest::EmptyEntryKey(1)));
        assert_eq!(of("a:b", &[entry("a")]), Err(BadRequest::KeyAndEntries));
    }

    #[test]
    fn what_is_too_long_is_refused_by_its_field() {
        let long = "x".repeat(70_000);
        let says = |key: &str, entries: &[WireEntry]| question("", key, entries, Hits::ONE).unwrap_err().to_string();
        assert_eq!(says(&long, &[]), "the prefix of limit_key has 70000 bytes, at most 1024 are possible");
        assert_eq!(
            says(&format!("a:{long}"), &[]),
            "limit_key behind its prefix has 70000 bytes, at most 65536 are possible"
        );
        let entry = |value: &str| WireEntry { key: "k".to_owned(), value: value.to_owned() };
        assert_eq!(
            says("", &[entry(""), entry(&long)]),
            "entries[1].value has 70000 bytes, at most 65536 are possible"
        );
        assert_eq!(says("", &vec![entry(""); 65]), "entries has 65 entries, at most 64 are possible");
    }

    #[test]
    fn a_cost_is_one_unless_it_is_given_and_never_negative_or_absurd() {
        assert_eq!(hits(None), Ok(Hits::ONE));
        assert_eq!(hits(Some(0)), Ok(Hits::Take(0)));
        assert_eq!(hits(Some(-1)), Err(BadRequest::NegativeCost(-1)));
        assert_eq!(hits(Some(i64::MAX)), Err(BadRequest::AbsurdCost(i64::MAX)));
        assert_eq!(hits(Some((1 << 52) - 1)), Ok(Hits::Take(HITS_MAX)));
    }
}
