//! How `tidelog consume` prints a record: kcat's and rpk's letters, JSON lines, or just the value.
//!
//! Owns: the little language of `--format`, and rendering a record into bytes.
//! Not here: where records come from.
//! Spec: `docs/guides/cli.md`, section consume.

use serde_json::{Map, Value};

/// A record with its place, as it is printed.
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// Headers in order; keys may repeat, values may be null.
    pub headers: &'a [(&'a [u8], Option<&'a [u8]>)],
}

/// A parsed `--format`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// The value and a newline.
    Value,
    /// One JSON object a line.
    Json,
    /// Pieces one after the other; nothing is added.
    Text(Vec<Piece>),
}

/// A piece of a text format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes as they are.
    Literal(Vec<u8>),
    /// %t
    Topic,
    /// %p
    Partition,
    /// %o
    Offset,
    /// %k
    Key,
    /// %K
    KeyLength,
    /// %v and %s
    Payload,
    /// %S
    PayloadLength,
    /// %h
    Headers,
    /// %T
    Timestamp,
}

/// Parses the argument of `--format`. An unknown letter or escape is refused, never printed as it stands.
pub fn parse(text: &str) -> Result<Format, String> {
    match text {
        "value" => return Ok(Format::Value),
        "json" => return Ok(Format::Json),
        "" => return Err("the format is empty".to_owned()),
        _ => {}
    }
    let mut pieces = Vec::new();
    let mut literal = Vec::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '%' => match percent(letters.next())? {
                Some(piece) => {
                    if !literal.is_empty() {
                        pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                    }
                    pieces.push(piece);
                }
                None => literal.push(b'%'),
            },
            '\\' => literal.push(escape(&mut letters)?),
            other => {
                let mut utf8 = [0; 4];
                literal.extend_from_slice(other.encode_utf8(&mut utf8).as_bytes());
            }
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(Format::Text(pieces))
}

fn percent(letter: Option<char>) -> Result<Option<Piece>, String> {
    Ok(Some(match letter {
        Some('%') => return Ok(None),
        Some('t') => Piece::Topic,
        Some('p') => Piece::Partition,
        Some('o') => Piece::Offset,
        Some('k') => Piece::Key,
        Some('K') => Piece::KeyLength,
        Some('v' | 's') => Piece::Payload,
        Some('S') => Piece::PayloadLength,
        Some('h') => Piece::Headers,
        Some('T') => Piece::Timestamp,
        Some(other) => {
            return Err(format!(
                "unknown letter %{other}: there are %t %p %o %k %K %v %s %S %h %T %%"
            ));
        }
        None => return Err("a lone % at the end: say %%".to_owned()),
    }))
}

fn escape(letters: &mut std::str::Chars<'_>) -> Result<u8, String> {
    match letters.next() {
        Some('n') => Ok(b'\n'),
        Some('t') => Ok(b'\t'),
        Some('r') => Ok(b'\r'),
        Some('0') => Ok(0),
        Some('\\') => Ok(b'\\'),
        Some('x') => {
            let digits: String = letters.by_ref().take(2).collect();
            if digits.len() != 2 {
                return Err("\\x needs two hexadecimal digits".to_owned());
            }
            u8::from_str_radix(&digits, 16)
                .map_err(|_| format!("\\x{digits} is not two hexadecimal digits"))
        }
        Some(other) => Err(format!(
            "unknown escape \\{other}: there are \\n \\t \\r \\0 \\\\ \\xHH"
        )),
        None => Err("a lone \\ at the end: say \\\\".to_owned()),
    }
}

impl Format {
    /// Appends the record to `out`.
    pub fn render(&self, record: &Printable<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Value => {
                out.extend_from_slice(record.value.unwrap_or_default());
                out.push(b'\n');
            }
            Self::Json => {
                out.extend_from_slice(json(record).to_string().as_bytes());
                out.push(b'\n');
            }
            Self::Text(pieces) => pieces
                .iter()
                .for_each(|piece| render_piece(piece, record, out)),
        }
    }
}

fn render_piece(piece: &Piece, record: &Printable<'_>, out: &mut Vec<u8>) {
    let length =
        |part: Option<&[u8]>| part.map_or_else(|| "-1".to_owned(), |bytes| bytes.len().to_string());
    match piece {
        Piece::Literal(bytes) => out.extend_from_slice(bytes),
        Piece::Topic => out.extend_from_slice(record.topic.as_bytes()),
        Piece::Partition => out.extend_from_slice(record.partition.to_string().as_bytes()),
        Piece::Offset => out.extend_from_slice(record.offset.to_string().as_bytes()),
        Piece::Key => out.extend_from_slice(record.key.unwrap_or_default()),
        Piece::KeyLength => out.extend_from_slice(length(record.key).as_bytes()),
        Piece::Payload => out.extend_from_slice(record.value.unwrap_or_default()),
        Piece::PayloadLength => out.extend_from_slice(length(record.value).as_bytes()),
        Piece::Timestamp => out.extend_from_slice(record.timestamp_ms.to_string().as_bytes()),
        Piece::Headers => {
            for (at, (key, value)) in record.headers.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(key);
                out.push(b'=');
                out.extend_from_slice(value.unwrap_or(b"NULL"));
            }
        }
    }
}

/// UTF-8 becomes a JSON string; other bytes become `{"hex": "…"}`, so nothing is lost or guessed.
fn bytes_value(bytes: Option<&[u8]>) -> Value {
    match bytes {
        None => Value::Null,
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::String(text.to_owned()),
            Err(_) => {
                let mut hex = String::with_capacity(bytes.len() * 2);
                for byte in bytes {
                    hex.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
                    hex.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
                }
                Value::Object(Map::from_iter([("hex".to_owned(), Value::String(hex))]))
            }
        },
    }
}

fn json(record: &Printable<'_>) -> Value {
    let headers = record
        .headers
        .iter()
        .map(|(key, value)| {
            Value::Object(Map::from_iter([
                ("key".to_owned(), bytes_value(Some(key))),
                ("value".to_owned(), bytes_value(*value)),
            ]))
        })
        .collect();
    Value::Object(Map::from_iter([
        ("topic".to_owned(), Value::from(record.topic)),
        ("partition".to_owned(), Value::from(record.partition)),
        ("offset".to_owned(), Value::from(record.offset)),
        ("timestamp".to_owned(), Value::from(record.timestamp_ms)),
        ("key".to_owned(), bytes_value(record.key)),
        ("value".to_owned(), bytes_value(record.value)),
        ("headers".to_owned(), Value::Array(headers)),
    ]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn render(format: &str, record: &Printable<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        parse(format).expect(format).render(record, &mut out);
        out
    }

    const RECORD: Printable<'static> = Printable {
        topic: "orders",
        partition: 3,
        offset: 42,
        timestamp_ms: 1500,
        key: Some(b"k\xff"),
        value: Some(b"v1"),
        headers: &[(b"a", Some(b"1")), (b"a", None)],
    };

    /// Proves every letter and escape, bytes that are not UTF-8 included.
    #[test]
    fn letters_and_escapes() {
        assert_eq!(render("%t/%p/%o\\n", &RECORD), b"orders/3/42\n");
        assert_eq!(
            render("%k\\t%v %s|%K|%S|%T|%%", &RECORD),
            b"k\xff\tv1 v1|2|2|1500|%"
        );
        assert_eq!(render("%h", &RECORD), b"a=1,a=NULL");
        assert_eq!(render("\\x00\\x7e\\\\\\r", &RECORD), b"\0~\\\r");
        let empty = Printable {
            key: None,
            value: None,
            headers: &[],
            ..RECORD
        };
        assert_eq!(render("[%k][%v]%K%S[%h]", &empty), b"[][]-1-1[]");
    }

    /// Proves that the default prints the value and a newline and nothing else.
    #[test]
    fn value_per_line() {
        assert_eq!(render("value", &RECORD), b"v1\n");
    }

    /// Proves the JSON shape that docs/guides/cli.md promises, for text, bytes and null.
    #[test]
    fn json_shape() {
        let parsed: Value = serde_json::from_slice(&render("json", &RECORD)).unwrap();
        assert_eq!(
            parsed,
            serde_json::json!({"topic": "orders", "partition": 3, "offset": 42, "timestamp": 1500,
                "key": {"hex": "6bff"}, "value": "v1",
                "headers": [{"key": "a", "value": "1"}, {"key": "a", "value": null}]})
        );
    }

    /// Proves that a format with a mistake is refused.
    #[test]
    fn mistakes_are_refused() {
        for wrong in ["", "%", "%q", "\\", "\\q", "\\x1", "\\xzz"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
