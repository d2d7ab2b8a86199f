//! Where results and talk go: stdout is data, stderr is talk.
//!
//! Owns: tables, JSON documents, broken pipes, durations and byte counts as text.
//! Not here: the formats of records (`consume`).

use super::Failure;
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// One line of talk on stderr. A closed stderr is nobody's loss.
pub fn say(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = writeln!(stderr, "{text}");
}

/// Prints text on stdout.
pub fn data(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(written)
}

/// Prints one JSON document and a newline on stdout.
pub fn json<T: Serialize>(document: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::Failed(format!("cannot print the result as JSON: {error}")))?;
    data(&format!("{text}\n"))
}

/// Prints an aligned table on stdout: no borders, two spaces between columns, as Kafka's and rpk's tools do.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    data(&render_table(head, rows))
}

fn render_table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    table.set_header(head.to_vec());
    for row in rows {
        table.add_row(row.clone());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// What a failed write to stdout means.
pub fn written(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::BrokenPipe
    } else {
        Failure::Failed(format!("cannot write to stdout: {error}"))
    }
}

/// Parses `30s`, `2m`, `500ms`. Zero is refused.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration =
        humantime::parse_duration(text).map_err(|error| format!("{error} (say 30s, 2m, 500ms)"))?;
    if duration.is_zero() {
        return Err("must be longer than zero".to_owned());
    }
    Ok(duration)
}

/// Bytes for people: `1.5 MiB`.
#[must_use]
#[allow(
    clippy::cast_precision_loss,
    reason = "rounded to one decimal for people"
)]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that columns align and no line ends in blanks.
    #[test]
    fn table_is_aligned_without_trailing_blanks() {
        let text = render_table(&["TOPIC", "PARTITIONS"], &[vec!["a".into(), "12".into()]]);
        assert_eq!(text, "TOPIC  PARTITIONS\na      12\n");
    }

    /// Proves the rounding of byte counts.
    #[test]
    fn bytes_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }
}
