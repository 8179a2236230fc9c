//! Requests that are well formed and mean anything at all, and hostile texts in keys. `PROPTEST_CASES` says how many.

use proptest::{collection::vec, option, prelude::*, sample::select};
use sluice::engine::request::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use sluice::grpc::{
    proto::envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::RateLimitRequest,
    },
    wire::Question,
};

use crate::{panics, targets::decided};

/// Mostly what the rules know, sometimes what separates, ends, escapes or is very long.
fn text() -> impl Strategy<Value = String> {
    let known =
        select(&["a", "b", "c", "p", "s", "q", "u", "m", "t", "x", "xy", "x-y-z", "", "1"][..]).prop_map(str::to_owned);
    let pieces = &[
        "{",
        "}",
        "{}",
        "|",
        "/",
        ":",
        "1:",
        "32#",
        "%7D",
        "*",
        "\0",
        "\n",
        "\r\n",
        "\u{1b}[2J",
        "\u{2028}",
        "\"",
        "\\",
        "ü",
        "💩",
    ];
    let hostile = vec(select(&pieces[..]), 1..5).prop_map(|pieces| pieces.concat());
    let long = (0..3_usize, 0..2_usize).prop_map(|(power, more)| "x".repeat([64, 4_096, 1 << 20][power] + more));
    prop_oneof![20 => known, 6 => hostile, 3 => any::<String>(), 1 => long]
}

fn descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
    let entry = (text(), text()).prop_map(|(key, value)| Entry { key, value });
    let unit = prop_oneof![5 => 1..=6_i32, 1 => any::<i32>()];
    let limit = (any::<u32>(), unit, option::of(any::<u32>()));
    let limit = limit.prop_map(|(requests_per_unit, unit, unit_multiplier)| RateLimitOverride {
        requests_per_unit,
        unit,
        unit_multiplier,
    });
    let hits = option::of(prop_oneof![3 => 0..4_u64, 1 => any::<u64>()]);
    (vec(entry, 0..4), option::weighted(0.2, limit), hits, any::<bool>()).prop_map(
        |(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
            entries,
            limit,
            hits_addend,
            is_negative_hits,
        },
    )
}

proptest! {
    #[test]
    fn every_request_is_answered_or_refused(
        domain in prop_oneof![8 => Just("d".to_owned()), 1 => text()],
        descriptors in vec(descriptor(), 0..6),
        hits_addend in prop_oneof![4 => 0..3_u32, 1 => any::<u32>()],
    ) {
        let is_long = |descriptor: &RateLimitDescriptor| {
            descriptor.entries.iter().any(|entry| entry.key.len() > KEY_BYTES_MAX || entry.value.len() > VALUE_BYTES_MAX)
        };
        let is_question = !domain.is_empty() && domain.len() <= KEY_BYTES_MAX && !descriptors.is_empty();
        let is_question = is_question && !descriptors.iter().any(is_long);
        let has_override = descriptors.iter().any(|descriptor| descriptor.limit.is_some());
        let before = panics();
        let answer = decided(&Question::from(&RateLimitRequest { domain, descriptors, hits_addend }));
        prop_assert_eq!(panics(), before);
        prop_assert!(answer.is_some() || !is_question || has_override, "only an override can be wrong otherwise");
    }
}
