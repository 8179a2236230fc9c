//! Text from outside, for people to read: in a line of the log, on a terminal, in an answer. It stays within its line.

use std::fmt::{self, Write as _};

/// Shows a text without anything in it that could forge a line, steer a terminal, or turn the order of what is read. Quotes and
/// backslashes stay as they are.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if steers(c) { write!(f, "{}", c.escape_debug())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

/// Ends of lines of every kind, controls and formats.
#[must_use]
pub fn steers(c: char) -> bool {
    !matches!(c, '"' | '\'' | '\\') && c.escape_debug().len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_within_its_line() {
        let hostile = "a\r\n\x1b[31m\u{2028}\u{9b}\u{202e}\0";
        assert_eq!(Printable(hostile).to_string(), r"a\r\n\u{1b}[31m\u{2028}\u{9b}\u{202e}\0");
        let harmless = r#"can't read "/a\b": ümläut"#;
        assert_eq!(Printable(harmless).to_string(), harmless);
    }
}
