//! Text from outside, on its way to a log line or a terminal.
//!
//! Owns: [`printable`].
//! Not here: how long a text may be (whoever takes it in).

use std::borrow::Cow;

/// `text` on one line: control characters, and those that break lines or turn the direction of writing, are escaped. So text from outside forges
/// no line of a log and moves no cursor.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_escaped(char) {
            escaped.extend(char.escape_default());
        } else {
            escaped.push(char);
        }
    }
    Cow::Owned(escaped)
}

fn is_escaped(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that nothing is left that ends a line, moves a cursor or turns the writing, and that all else stays as it is.
    #[test]
    fn what_forges_lines_is_escaped() {
        for plain in ["", "prod", "größe 東京 \\n \"x\""] {
            assert!(matches!(printable(plain), Cow::Borrowed(same) if same == plain));
        }
        let cases = [
            ("a\nWARN b", "a\\nWARN b"),
            ("a\r\tb", "a\\r\\tb"),
            ("\u{1b}[2Jx", "\\u{1b}[2Jx"),
            ("\0\u{7f}\u{9b}", "\\u{0}\\u{7f}\\u{9b}"),
            ("ü\u{2028}\u{202e}", "ü\\u{2028}\\u{202e}"),
        ];
        for (text, escaped) in cases {
            assert_eq!(printable(text), escaped);
        }
    }
}
