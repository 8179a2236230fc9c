//! The protobuf JSON form of the question and its answer, by protobuf's own rules.
//!
//! In: names in `camelCase` or `snake_case`, enums by name or number, integers as numbers or strings, `null` as absent;
//! fields that are not known, given twice or of the wrong type are refused with their path. Out: what is zero is left
//! out, enums are names, durations are `"42s"`. Knows the messages, but nothing of what they mean.

mod request;
mod response;
mod unique;

pub use request::{BadJson, parse};
pub use response::render;
pub use unique::VALUES_MAX;

/// `snake_case` as protobuf JSON spells it.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut camel, word| {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
        camel
    })
}
