//! The scenario tables of `tests/scenarios`, run on the engine alone.

use std::collections::HashMap;

use super::{Decisions, State, decide};
use crate::engine::scenarios::{self, Step};

/// Keeps states as a store would: what is not said to have changed is not written, what is idle is forgotten.
#[derive(Default)]
struct Shelf {
    states: HashMap<String, State>,
}

impl Shelf {
    fn decide(&mut self, step: &Step) -> Decisions {
        let quota_of =
            |slot| &step.checks.iter().find(|check| check.slot == slot).expect("each slot has a check").quota;
        let remembered = step.counters.iter().enumerate();
        let mut states: Vec<State> = remembered
            .map(|(slot, name)| self.states.get(name).cloned().unwrap_or_else(|| State::absent(quota_of(slot))))
            .collect();
        let (decisions, changed) = decide(step.now_us, &step.checks, &mut states);
        for (slot, state) in states.into_iter().enumerate().filter(|(slot, _)| changed[*slot]) {
            let name = step.counters[slot].clone();
            if state.idle_at_us(quota_of(slot)) <= step.now_us {
                self.states.remove(&name);
            } else {
                self.states.insert(name, state);
            }
        }
        decisions
    }
}

fn holds(text: &str) {
    let mut shelf = Shelf::default();
    let scenarios = scenarios::parse(text).unwrap();
    assert!(!scenarios.is_empty());
    let wrong: Vec<String> = scenarios
        .iter()
        .flat_map(|scenario| scenario.steps.iter().map(|step| (&scenario.title, step)))
        .filter_map(|(title, step)| step.verify(&shelf.decide(step)).err().map(|wrong| format!("{title}: {wrong}")))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

macro_rules! scenarios_hold {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            holds(include_str!(concat!("../../../tests/scenarios/", stringify!($name), ".txt")));
        }
    )*};
}

scenarios_hold! {
    fixed_window sliding_window token_bucket leaky_bucket_rates requests quota_and_shadow refunds_and_looks clock denials
    edges
}

#[test]
fn a_scenario_that_does_not_hold_is_told_with_its_line() {
    let text = "rule a: fixed_window 1/second\nat 0s a hits 2 -> ok";
    let step = &scenarios::parse(text).unwrap()[0].steps[0];
    let wrong = step.verify(&Shelf::default().decide(step)).unwrap_err();
    assert!(wrong.starts_with("line 2: expected ok"), "{wrong}");
}

#[test]
fn a_scenario_that_cannot_be_read_is_told_with_its_line() {
    for (text, expected) in [
        ("\nrule a: hourglass 1/second", "line 2: no algorithm hourglass"),
        ("rule a: fixed_window 1/fortnight", "line 1: no unit fortnight"),
        ("at 0s b hits 1 -> ok", "line 1: no rule b"),
        ("nonsense", "line 1: neither"),
    ] {
        let wrong = scenarios::parse(text).unwrap_err();
        assert!(wrong.starts_with(expected), "{wrong}");
    }
}
