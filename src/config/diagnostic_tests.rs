use super::*;

fn sources(text: &str) -> Vec<Source> {
    vec![Source { name: "rules.yaml".to_owned(), text: text.to_owned() }]
}

fn found(text: &str, finding: Finding) -> Diagnostic {
    let sources = sources(text);
    let mut report = Report::new(&sources);
    let mut trail = Trail::new(0, "edge");
    trail.steps = vec![Step::Field("descriptors"), Step::Index(2), Step::Field("rate_limit")];
    trail.labels = vec![("api_key", ""), ("path", "/v*")];
    report.add(&trail, finding);
    report.finish().0.remove(0)
}

#[test]
fn a_diagnostic_shows_the_line_the_place_and_the_way() {
    let finding = Finding::error(Place { line: 2, column: 9 }, "invalid rate limit unit 'minutes'");
    let shown = found("domain: edge\n  unit: minutes\n", finding.field("unit").hint("did you mean 'minute'?"));
    let expected = "\
error: invalid rate limit unit 'minutes'
  --> rules.yaml:2:9
  |
2 |   unit: minutes
  |         ^
  = at: descriptors[2].rate_limit.unit (edge > api_key > path_/v*)
  = hint: did you mean 'minute'?";
    assert_eq!(shown.to_string(), expected);
}

#[test]
fn a_diagnostic_is_json_too() {
    let shown = found("domain: edge\n", Finding::error(Place { line: 1, column: 9 }, "no"));
    let json = serde_json::to_value(&shown).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "severity": "error", "file": "rules.yaml", "line": 1, "column": 9,
            "path": "descriptors[2].rate_limit", "tree_path": "edge > api_key > path_/v*",
            "message": "no", "excerpt": "domain: edge",
        })
    );
}

#[test]
fn a_long_line_is_cut_around_the_place() {
    for filler in ["x", "ü"] {
        let text = format!("{}HERE{}", filler.repeat(5_000), filler.repeat(5_000));
        let shown = found(&text, Finding::error(Place { line: 1, column: 5_001 }, "no"));
        let excerpt = shown.excerpt.unwrap();
        assert!(excerpt.chars().count() <= EXCERPT_CHARS_MAX);
        assert!(excerpt.chars().skip(shown.caret).collect::<String>().starts_with("HERE"));
    }
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let shown = found("a:\t\u{1b}[2Jx\r\n", Finding::error(Place { line: 1, column: 4 }, "no"));
    assert_eq!(shown.excerpt.unwrap(), "a:  [2Jx");
}

#[test]
fn a_place_beyond_the_text_has_no_excerpt() {
    assert_eq!(found("a", Finding::error(Place { line: 9, column: 1 }, "no")).excerpt, None);
}

#[test]
fn findings_come_in_the_order_of_the_file_and_errors_apart() {
    let sources = sources("a\nb\nc\n");
    let mut report = Report::new(&sources);
    let trail = Trail::default();
    let at = |line| Place { line, column: 1 };
    report.add(&trail, Finding::error(at(3), "third"));
    report.add(&trail, Finding::warning(at(2), "second"));
    report.add(&trail, Finding::error(at(1), "first"));
    let (errors, rest) = report.finish();
    assert_eq!(errors.iter().map(|error| &*error.message).collect::<Vec<_>>(), ["first", "third"]);
    assert_eq!(rest.len(), 1);
}

#[test]
fn very_many_mistakes_are_counted_and_no_warning_hides_an_error() {
    let sources = sources("a\n");
    let mut report = Report::new(&sources);
    for _ in 0..SHOWN_MAX + 5 {
        report.add(&Trail::default(), Finding::warning(Place::START, "w"));
    }
    for _ in 0..SHOWN_MAX + 7 {
        report.add(&Trail::default(), Finding::error(Place::START, "e"));
    }
    report.add(&Trail::default(), Finding::warning(Place::START, "w"));
    let (errors, rest) = report.finish();
    assert_eq!((errors.len(), rest.len()), (SHOWN_MAX, SHOWN_MAX));
    assert_eq!(errors.last().unwrap().hint.as_deref(), Some("7 more are not shown"));
    assert_eq!(rest.last().unwrap().hint.as_deref(), Some("6 more are not shown"));
}
