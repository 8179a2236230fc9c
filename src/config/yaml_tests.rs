use super::*;

fn one(text: &str) -> Node<'_> {
    let mut parsed = parse(text);
    assert!(parsed.mistakes.is_empty(), "{:?}", parsed.mistakes);
    assert_eq!(parsed.documents.len(), 1, "{text}");
    parsed.documents.remove(0)
}

fn json(text: &str) -> String {
    crate::config::json::of(&one(text)).unwrap().to_string()
}

fn mistakes(text: &str) -> Vec<String> {
    let show = |finding: Finding| format!("{}:{} {}", finding.place.line, finding.place.column, finding.message);
    parse(text).mistakes.into_iter().map(show).collect()
}

#[test]
fn every_node_knows_its_place() {
    let root = one("a: 1\nb:\n  - x\n  - {c: \"y\"}\n");
    assert_eq!(root.place, Place { line: 1, column: 1 });
    let b = root.get("b").unwrap();
    assert_eq!(b.place, Place { line: 3, column: 3 });
    let Kind::Seq(items) = &b.kind else { panic!("a list") };
    assert_eq!(items[1].place, Place { line: 4, column: 5 });
    assert_eq!(items[1].get("c").unwrap().place, Place { line: 4, column: 9 });
    assert!(matches!(items[1].get("c").unwrap().kind, Kind::Scalar { quoted: true, .. }));
    assert!(matches!(items[0].kind, Kind::Scalar { quoted: false, .. }));
}

#[test]
fn json_is_yaml() {
    assert_eq!(json("{\"a\": [1, \"2\", true, null, 1.5], \"b\": {}}"), r#"{"a":[1,"2",true,null,1.5],"b":{}}"#);
}

#[test]
fn a_byte_order_mark_moves_nothing() {
    let root = one("\u{FEFF}a: 1");
    assert_eq!(root.get("a").unwrap().place, Place { line: 1, column: 4 });
}

#[test]
fn documents_are_told_apart_and_empty_ones_left_out() {
    let parsed = parse("---\n---\na: 1\n---\n# nothing\n---\nb: 2\n...\n");
    assert!(parsed.mistakes.is_empty(), "{:?}", parsed.mistakes);
    assert_eq!(parsed.documents.len(), 2);
    assert!(parse("# only this\n").documents.is_empty());
    assert!(parse("").documents.is_empty());
}

#[test]
fn aliases_stand_for_their_anchors() {
    assert_eq!(
        json("a: &x {k: [1]}\nb: *x\nc: [*x, *x]"),
        r#"{"a":{"k":[1]},"b":{"k":[1]},"c":[{"k":[1]},{"k":[1]}]}"#
    );
}

#[test]
fn an_anchor_ends_with_its_document() {
    assert_eq!(mistakes("a: &x 1\n---\nb: *x\n").len(), 1);
}

#[test]
fn merge_keys_give_what_is_not_written_out() {
    assert_eq!(json("a: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}"), r#"{"a":{"k":1,"l":2},"b":{"k":3,"l":2}}"#);
    let list = "a: &x {k: 1}\nb: &y {k: 2, l: 3}\nc: {<<: [*x, *y]}";
    assert_eq!(json(list), r#"{"a":{"k":1},"b":{"k":2,"l":3},"c":{"k":1,"l":3}}"#);
    assert_eq!(json("{\"<<\": 1}"), r#"{"<<":1}"#);
    assert_eq!(mistakes("a: {<<: 5}"), ["1:9 a merge key '<<' takes a map or a list of maps"]);
}

#[test]
fn duplicate_keys_are_refused_with_both_places() {
    assert_eq!(mistakes("a: 1\nb: 2\na: 3\n"), ["3:1 duplicate key 'a', first written at 1:1"]);
    let many: String = (0..50).map(|n| format!("k{n}: 1\n")).collect();
    assert_eq!(mistakes(&(many + "k7: 2\n")), ["51:1 duplicate key 'k7', first written at 8:1"]);
}

#[test]
fn tags_can_make_strings_and_others_are_refused() {
    assert_eq!(json("[!!str 5, !!int \"5\"]"), r#"["5",5]"#);
    assert!(mistakes("a: !custom 5")[0].contains("has no meaning here"));
    assert!(mistakes("a: !!set {}")[0].contains("has no meaning here"));
}

#[test]
fn a_syntax_error_has_its_place() {
    let found = mistakes("a: 1\nb: [1, 2\nc: 3\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("error loading config file: "), "{found:?}");
    assert!(mistakes("a: *nowhere")[0].contains("error loading config file"));
}

#[test]
fn a_nul_byte_does_not_end_a_file_silently() {
    assert_eq!(mistakes("a: 1\nb\0: 2"), ["2:2 the file contains a NUL byte, which is not text"]);
}

#[test]
fn a_file_can_be_too_large() {
    let text = " ".repeat(BYTES_MAX + 1);
    assert!(mistakes(&text)[0].contains("33554432 (32 MiB)"));
}

#[test]
fn a_file_can_be_too_deep_with_and_without_aliases() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(mistakes(&nested(DEPTH_MAX)).is_empty());
    for depth in [DEPTH_MAX + 1, 300, 100_000] {
        assert!(mistakes(&nested(depth))[0].contains("deeper than 64 levels"), "{depth}");
    }
    assert!(mistakes(&format!("a: {}", "[".repeat(100_000)))[0].contains("deeper than 64 levels"));
    // Each level is shallow as written, and deep when written out.
    let chained: String = (1..40).map(|n| format!("a{n}: &a{n} [[[*a{}]]]\n", n - 1)).collect();
    assert!(mistakes(&format!("a0: &a0 [1]\n{chained}"))[0].contains("deeper than 64 levels"));
}

#[test]
fn a_billion_laughs_are_refused_by_counting() {
    let mut text = "a0: &a0 lol\n".to_owned();
    for n in 1..20 {
        let row = vec![format!("*a{}", n - 1); 10].join(", ");
        text.push_str(&format!("a{n}: &a{n} [{row}]\n"));
    }
    assert!(mistakes(&text)[0].contains("more than 1500000 values once its aliases are written out"));
}

#[test]
fn merge_keys_have_a_budget_of_their_own() {
    let merged: String = (0..255).map(|n| format!("m{n}: {{<<: *big}}\n")).collect();
    let big: String = (0..2_000).map(|n| format!("  k{n}: 1\n")).collect();
    assert!(mistakes(&format!("big: &big\n{big}{merged}"))[0].contains("merge keys write out more than 500000 pairs"));
}

#[test]
fn the_budgets_hold_to_the_last_value() {
    // The list itself, 999 values 1501 times, and single ones.
    let nodes = |single: usize| {
        let list = format!("- &a [{}]\n{}", ["0"; 998].join(","), "- *a\n".repeat(1_500));
        mistakes(&(list + &"- 0\n".repeat(single)))
    };
    assert_eq!(nodes(500), Vec::<String>::new(), "{NODES_MAX}");
    assert!(nodes(501)[0].contains("more than 1500000 values"));

    let pairs = |more: &str| {
        let merged: String = (0..250).map(|n| format!("m{n}: {{<<: *big}}\n")).collect();
        let big: String = (0..2_000).map(|n| format!("  k{n}: 1\n")).collect();
        mistakes(&format!("big: &big\n{big}{merged}{more}"))
    };
    assert_eq!(pairs(""), Vec::<String>::new(), "{MERGED_MAX}");
    assert!(pairs("one: &one {k: 1}\nmore: {<<: *one}\n")[0].contains("more than 500000 pairs"));
}

#[test]
fn an_alias_inside_its_own_anchor_is_refused() {
    assert!(mistakes("a: &x [*x]")[0].contains("no value that is complete before it"));
}
