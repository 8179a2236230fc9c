//! Reads the Prometheus text format.

use std::collections::BTreeMap;

/// A name and its labels.
type Series = (String, BTreeMap<String, String>);

#[derive(Debug, Default)]
pub struct Scrape {
    series: BTreeMap<Series, f64>,
    /// By name of the family.
    types: BTreeMap<String, String>,
}

impl Scrape {
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if let Some(comment) = line.strip_prefix('#') {
                if let ["TYPE", name, kind] = comment.split_whitespace().collect::<Vec<_>>()[..] {
                    scrape.types.insert(name.to_owned(), kind.to_owned());
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line:?}"));
            let value = value.parse().unwrap_or_else(|_| panic!("no number in {line:?}"));
            scrape.series.insert(parse_series(series), value);
        }
        scrape
    }

    /// The value of one series as the exposition writes it; labels may stand in any order.
    pub fn value(&self, series: &str) -> Option<f64> {
        self.series.get(&parse_series(series)).copied()
    }

    pub fn kind(&self, name: &str) -> Option<&str> {
        self.types.get(name).map(|kind| &**kind)
    }

    /// All label sets of a name, with their values.
    pub fn of(&self, name: &str) -> Vec<(&BTreeMap<String, String>, f64)> {
        self.series.iter().filter(|((its, _), _)| its == name).map(|((_, labels), value)| (labels, *value)).collect()
    }
}

#[track_caller]
fn parse_series(text: &str) -> Series {
    let Some((name, labels)) = text.split_once('{') else {
        return (text.trim().to_owned(), BTreeMap::new());
    };
    let mut rest = labels.trim_end().strip_suffix('}').unwrap_or_else(|| panic!("no closing brace in {text:?}"));
    let mut found = BTreeMap::new();
    while let Some((label, after)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next() {
                Some((end, '"')) => break end,
                Some((_, '\\')) => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, other)) => value.push(other),
                    None => panic!("an open label in {text:?}"),
                },
                Some((_, other)) => value.push(other),
                None => panic!("an open label in {text:?}"),
            }
        };
        found.insert(label.trim_matches([',', ' ']).to_owned(), value);
        rest = &after[end + 1..];
    }
    (name.trim().to_owned(), found)
}

#[test]
fn a_scrape_is_read_with_its_labels_in_any_order() {
    let scrape = Scrape::parse("# TYPE a_b counter\na_b{x=\"1\",y=\"q\\\"{,}\"} 3\nplain 0.5\n");
    assert_eq!(scrape.value("a_b{y=\"q\\\"{,}\",x=\"1\"}"), Some(3.0));
    assert_eq!(scrape.value("plain"), Some(0.5));
    assert_eq!(scrape.value("a_b{x=\"1\"}"), None);
    assert_eq!(scrape.kind("a_b"), Some("counter"));
}
