//! Whatever the text is, it compiles or is refused with a place in it.

use proptest::prelude::*;

use super::*;

const RULES: &str = include_str!("../../../config/rules/edge.yaml");

fn check(text: &str) -> Result<(), TestCaseError> {
    if let Err(errors) = compile(&[source("r", text)], &CompileOptions::default()) {
        prop_assert!(!errors.is_empty());
        let lines = u32::try_from(text.lines().count()).unwrap() + 1;
        for error in errors {
            prop_assert!((1..=lines).contains(&error.line) && error.column >= 1, "{error}");
            prop_assert!(!error.message.is_empty());
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_compiled_or_refused(text in "[a-c:\\-\\[\\]{},*&<|>'\"#\n !?~1.é\\\\%@]{0,60}") {
        check(&text)?;
    }

    #[test]
    fn any_slip_in_good_rules_is_compiled_or_refused(
        at in 0..RULES.len(), removed in 0_usize..30, added in "[a:\\-\\[\\]{},*&\n ]{0,3}",
    ) {
        let end = (at + removed).min(RULES.len());
        check(&format!("{}{added}{}", &RULES[..at], &RULES[end..]))?;
    }
}

#[test]
fn a_short_file_that_aliases_make_long_is_refused_by_the_number_of_its_rules() {
    let inner = "{key: b}, ".repeat(499);
    let outer = |count: usize| {
        format!("domain: d\ndescriptors: [&d {{key: a, descriptors: [{inner}]}}, {}]\n", "*d, ".repeat(count - 1))
    };
    let at_most = crate::config::read::RULES_MAX / 500;
    let says =
        |errors: &[Diagnostic]| errors.iter().any(|error| error.message.contains("more than 250000 descriptors"));
    assert!(!says(&errors(&outer(at_most))), "duplicates are what is wrong here");
    let errors = errors(&outer(at_most + 1));
    assert!(errors.len() == 1 && says(&errors), "{}", shown(&errors));
}
