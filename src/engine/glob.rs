//! Patterns in which `*` stands for any run of characters, none included. There is no way to write a literal star.

/// The pieces of a pattern between its stars: at least two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Box<str>,
    pieces: Box<[Box<str>]>,
}

impl Glob {
    /// `None` if the text has no star, and so is no pattern.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if !text.contains('*') {
            return None;
        }
        // Neighbouring stars are one star.
        let mut pieces: Vec<Box<str>> = Vec::new();
        for piece in text.split('*') {
            let inner = pieces.len() > 1;
            if inner && pieces.last().is_some_and(|last| last.is_empty()) {
                pieces.pop();
            }
            pieces.push(piece.into());
        }
        Some(Self { text: text.into(), pieces: pieces.into() })
    }

    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Linear in the length of the value: the first piece must begin it, the last must end it, and each piece between
    /// takes the first place after the one before. Taking the first place is never wrong, because it leaves the most room.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let (Some((first, rest)), true) = (self.pieces.split_first(), self.pieces.len() > 1) else {
            return false;
        };
        let Some((last, middle)) = rest.split_last() else { return false };
        let Some(mut value) = value.strip_prefix(&**first).and_then(|value| value.strip_suffix(&**last)) else {
            return false;
        };
        for piece in middle {
            match value.find(&**piece) {
                Some(at) => value = &value[at + piece.len()..],
                None => return false,
            }
        }
        true
    }

    /// Whether every value that `other` matches is certainly matched by this one too, so that `other`, standing behind
    /// it, can never be met. May say no where the answer is yes.
    #[must_use]
    pub fn covers(&self, other: &Glob) -> bool {
        // A star of `other` may stand for anything, a character that no pattern names included.
        self.matches(&other.text.replace('*', "\u{10FFFF}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The plainest definition: try every way.
    fn oracle(pattern: &[char], value: &[char]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some(('*', rest)) => (0..=value.len()).any(|taken| oracle(rest, &value[taken..])),
            Some((first, rest)) => value.first() == Some(first) && oracle(rest, &value[1..]),
        }
    }

    fn matches(pattern: &str, value: &str) -> bool {
        Glob::parse(pattern).is_some_and(|glob| glob.matches(value))
    }

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, value, expected) in [
            ("*", "", true),
            ("*", "anything/at_all", true),
            ("foo*", "foo", true),
            ("foo*", "fo", false),
            ("*.png", "a/b.png", true),
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "acb", false),
            ("a**c", "abc", true),
            ("**", "x", true),
            ("/v*/users/*", "/v2/users/7", true),
            ("ü*ß", "üöß", true),
        ] {
            assert_eq!(matches(pattern, value), expected, "{pattern} on {value}");
        }
    }

    #[test]
    fn a_text_without_a_star_is_no_pattern() {
        assert!(Glob::parse("plain").is_none());
    }

    #[test]
    fn many_stars_cost_linear_time() {
        // Backtracking would need longer than the universe has existed.
        let pattern = "a*".repeat(500) + "b";
        let value = "a".repeat(100_000);
        assert!(!matches(&pattern, &value));
    }

    #[test]
    fn a_pattern_covers_what_it_makes_unreachable() {
        let covers = |a: &str, b: &str| Glob::parse(a).unwrap().covers(&Glob::parse(b).unwrap());
        assert!(covers("*", "foo*"));
        assert!(covers("foo*", "foobar*"));
        assert!(!covers("foobar*", "foo*"));
        assert!(!covers("*x", "x*"));
    }

    proptest! {
        #[test]
        fn matching_agrees_with_trying_every_way(pattern in "[ab*]{0,8}", value in "[ab]{0,10}") {
            prop_assume!(pattern.contains('*'));
            let (p, v): (Vec<char>, Vec<char>) = (pattern.chars().collect(), value.chars().collect());
            prop_assert_eq!(matches(&pattern, &value), oracle(&p, &v));
        }

        #[test]
        fn what_a_pattern_covers_it_matches(a in "[ab*]{1,5}", b in "[ab*]{1,5}", value in "[ab]{0,8}") {
            if let (Some(a), Some(b)) = (Glob::parse(&a), Glob::parse(&b)) {
                prop_assert!(!(a.covers(&b) && b.matches(&value)) || a.matches(&value));
            }
        }
    }
}
