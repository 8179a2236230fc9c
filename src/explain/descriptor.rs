//! A descriptor as people type it.

/// Reads `key=value,key=value`. Only the first `=` of an entry splits it; `\,` is a comma and `\\` a backslash of a value.
///
/// # Errors
/// One sentence that names the entry and says how to write it.
pub fn parse_descriptor(text: &str) -> Result<Vec<(String, String)>, String> {
    if text.is_empty() {
        return Err("the descriptor is empty: write key=value,key=value".to_owned());
    }
    let entries = split(text);
    let entry = |(index, entry): (usize, &String)| match entry.split_once('=') {
        Some(("", _)) => Err(format!("entry {} of {text:?} has no key: write key=value", index + 1)),
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None if entry.is_empty() => Err(format!("entry {} of {text:?} is empty: take away a comma", index + 1)),
        None => Err(format!(
            "entry {} of {text:?} is {entry:?}, which has no `=`: write {entry}=value, or \\, for a comma in a value",
            index + 1
        )),
    };
    entries.iter().enumerate().map(entry).collect()
}

fn split(text: &str) -> Vec<String> {
    let mut entries = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let escaped = if letter == '\\' { letters.next_if(|next| matches!(next, ',' | '\\')) } else { None };
        match (letter, escaped) {
            (',', _) => entries.push(String::new()),
            (letter, escaped) => entries.last_mut().into_iter().for_each(|entry| entry.push(escaped.unwrap_or(letter))),
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse_descriptor(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn entries_are_split_at_commas_and_at_their_first_equals_sign() {
        assert_eq!(parsed("user=alice"), pairs(&[("user", "alice")]));
        assert_eq!(parsed("path=/a?b=c,user="), pairs(&[("path", "/a?b=c"), ("user", "")]));
    }

    #[test]
    fn a_comma_in_a_value_is_escaped() {
        assert_eq!(parsed(r"name=Doe\, Jane,x=y"), pairs(&[("name", "Doe, Jane"), ("x", "y")]));
        assert_eq!(parsed(r"dir=c:\temp\\,x=y"), pairs(&[("dir", r"c:\temp\"), ("x", "y")]));
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_entry() {
        for (text, expected) in [
            ("", "the descriptor is empty"),
            ("user", "entry 1 of \"user\" is \"user\", which has no `=`"),
            ("a=b,", "entry 2 of \"a=b,\" is empty"),
            ("a=b,=c", "entry 2 of \"a=b,=c\" has no key"),
        ] {
            let error = parse_descriptor(text).expect_err(text);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
