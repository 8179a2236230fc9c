//! An answer for people to read.

use super::{
    call::{Answered, Status},
    code,
};

/// One descriptor stands on the line of its request; several stand below it.
pub fn line(number: u64, answer: &Answered) -> String {
    let head = format!("{number:>4}  {:<10}", code(answer.allowed));
    match &answer.descriptors[..] {
        [one] => format!("{head}  {}", described(one)),
        several => {
            let below = several.iter().map(|one| format!("\n        {:<10}  {}", code(one.allowed), described(one)));
            format!("{}{}", head.trim_end(), below.collect::<String>())
        }
    }
}

fn described(status: &Status) -> String {
    let mut parts = vec![status.limit.clone().unwrap_or_else(|| "no limit".to_owned())];
    parts.extend(status.remaining.map(|remaining| format!("{remaining} remaining")));
    parts.extend(status.when.clone());
    format!("{}: {}", status.descriptor, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;

    fn status(descriptor: &str, allowed: bool, remaining: Option<u64>) -> Status {
        let limit = remaining.map(|_| "10 per second".to_owned());
        let when = remaining.map(|_| "reset in 1 s".to_owned());
        Status { descriptor: descriptor.to_owned(), allowed, limit, remaining, when }
    }

    fn shown(allowed: bool, descriptors: Vec<Status>) -> String {
        line(7, &Answered { allowed, took: Duration::ZERO, descriptors, json: Value::Null })
    }

    #[test]
    fn one_descriptor_stands_on_the_line_of_its_request() {
        let text = shown(true, vec![status("ip=1", true, Some(9))]);
        assert_eq!(text, "   7  OK          ip=1: 10 per second, 9 remaining, reset in 1 s");
        assert_eq!(shown(true, vec![status("ip=1", true, None)]), "   7  OK          ip=1: no limit");
    }

    #[test]
    fn several_descriptors_stand_below_it() {
        let text = shown(false, vec![status("ip=1", true, Some(9)), status("user=a", false, Some(0))]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "   7  OVER_LIMIT");
        assert_eq!(lines[1], "        OK          ip=1: 10 per second, 9 remaining, reset in 1 s");
        assert_eq!(lines[2], "        OVER_LIMIT  user=a: 10 per second, 0 remaining, reset in 1 s");
    }
}
