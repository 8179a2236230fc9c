//! What a writer may have meant: which key belongs where, and which word is nearest to another.

use super::diagnostic::{Finding, Place};

/// The kinds of maps in a rules file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    File,
    Descriptor,
    RateLimit,
    Rate,
    Plan,
    Defaults,
    Replaces,
}

impl Level {
    /// In the order in which a misplaced key is looked for.
    const ALL: [Level; 7] =
        [Level::RateLimit, Level::Descriptor, Level::File, Level::Rate, Level::Plan, Level::Defaults, Level::Replaces];

    #[must_use]
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Level::File => &["domain", "partition_by", "defaults", "plans", "descriptors"],
            Level::Descriptor => &[
                "key",
                "value",
                "rate_limit",
                "descriptors",
                "shadow_mode",
                "quota_mode",
                "detailed_metric",
                "value_to_metric",
                "share_threshold",
                "metadata",
            ],
            Level::RateLimit => &[
                "unit",
                "requests_per_unit",
                "unit_multiplier",
                "name",
                "algorithm",
                "burst",
                "rates",
                "plans",
                "plan",
                "unlimited",
                "replaces",
                "on_over_limit",
                "on_store_failure",
                "track_denials",
            ],
            Level::Rate => &["requests_per_unit", "unit", "unit_multiplier", "burst", "name"],
            Level::Plan => &[
                "requests_per_unit",
                "unit",
                "unit_multiplier",
                "algorithm",
                "burst",
                "rates",
                "on_over_limit",
                "track_denials",
            ],
            Level::Defaults => &["algorithm", "on_over_limit", "on_store_failure", "track_denials"],
            Level::Replaces => &["name"],
        }
    }

    /// With its article.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::File => "a rules file",
            Level::Descriptor => "a descriptor",
            Level::RateLimit => "a rate_limit",
            Level::Rate => "an entry of rates",
            Level::Plan => "a plan",
            Level::Defaults => "defaults",
            Level::Replaces => "an entry of replaces",
        }
    }

    /// Where a key of this level belongs.
    fn whereabouts(self) -> &'static str {
        match self {
            Level::File => "belongs at the top of the file, beside domain",
            Level::Descriptor => "belongs beside key, in a descriptor",
            Level::RateLimit => "belongs inside rate_limit",
            Level::Rate => "belongs inside an entry of rates",
            Level::Plan => "belongs inside a plan",
            Level::Defaults => "belongs inside defaults",
            Level::Replaces => "belongs inside an entry of replaces",
        }
    }
}

/// A key that does not belong where it stands.
#[must_use]
pub fn unknown_key(level: Level, key: &str, place: Place) -> Finding {
    if let Some(other) = Level::ALL.into_iter().find(|other| other.keys().contains(&key)) {
        let message = format!("key '{key}' has no place in {}", level.name());
        return Finding::error(place, message).hint(format!("it {}", other.whereabouts()));
    }
    let finding = Finding::error(place, format!("unknown key '{key}'"));
    if let Some(known) = nearest(key, level.keys().iter().copied()) {
        return finding.hint(format!("did you mean '{known}'?"));
    }
    let elsewhere = Level::ALL.into_iter().find_map(|other| Some((other, nearest(key, other.keys().iter().copied())?)));
    match elsewhere {
        Some((other, known)) => finding.hint(format!("did you mean '{known}'? it {}", other.whereabouts())),
        None => finding.hint(format!("{} takes {}", level.name(), level.keys().join(", "))),
    }
}

/// The word with the fewest changes, if they are few enough to be a slip.
pub fn nearest<'w>(word: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let lower = word.to_lowercase();
    // Far longer than any word of ours; the distance is not worth its cost.
    if lower.len() > 40 {
        return None;
    }
    let with_distance = words.into_iter().map(|known| (distance(&lower, known), known));
    let (changes, known) = with_distance.min_by_key(|(changes, _)| *changes)?;
    (changes <= known.len().min(lower.len()) / 3).then_some(known)
}

/// Insertions, removals, replacements and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_a_slip_away() {
        let words = ["second", "minute", "hour", "requests_per_unit"];
        for (word, expected) in [
            ("seconds", Some("second")),
            ("mintue", Some("minute")),
            ("Hour", Some("hour")),
            ("request_per_unit", Some("requests_per_unit")),
            ("requestsPerUnit", Some("requests_per_unit")),
            ("banana", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, words), expected, "{word}");
        }
    }

    #[test]
    fn a_key_of_another_level_is_sent_there() {
        let hint = |level, key| unknown_key(level, key, Place::default()).hint.unwrap_or_default();
        assert_eq!(hint(Level::Descriptor, "unlimited"), "it belongs inside rate_limit");
        assert_eq!(hint(Level::RateLimit, "shadow_mode"), "it belongs beside key, in a descriptor");
        assert_eq!(hint(Level::Plan, "domain"), "it belongs at the top of the file, beside domain");
        assert_eq!(hint(Level::Descriptor, "rate_limits"), "did you mean 'rate_limit'?");
        assert_eq!(hint(Level::Descriptor, "algoritm"), "did you mean 'algorithm'? it belongs inside rate_limit");
        assert!(hint(Level::Replaces, "banana").contains("takes name"));
    }
}
