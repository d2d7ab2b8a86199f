//! `tidelog consume`: records on stdout.

pub mod format;

use self::format::Format;
use super::{Failure, Global, World};
use clap::Args;

/// Flags of `tidelog consume`.
#[derive(Args, Debug)]
pub struct ConsumeArgs {
    /// The topic.
    pub topic: String,
    /// Where to begin: earliest, latest, an offset, or @ and a time such as @2026-01-01T00:00:00Z.
    /// With --group: where a partition without a committed offset begins. [default: earliest, with --group latest]
    #[arg(long, short = 'o', value_name = "FROM", value_parser = from)]
    pub from: Option<From>,
    /// Share the partitions with the other members of this consumer group and remember the progress.
    #[arg(long, short = 'g', value_name = "G")]
    pub group: Option<String>,
    /// Stop after this many records.
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "until_end", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Stop at the ends that the partitions had at the start.
    #[arg(long, short = 'e')]
    pub until_end: bool,
    /// `value` (a line each), `json` (an object a line), or text with %t topic, %p partition, %o offset, %k key,
    /// %v or %s value, %S value length, %K key length, %h headers, %T timestamp in ms, %% and \n \t \r \\ \xHH.
    #[arg(long, short = 'f', value_name = "FORMAT", default_value = "value", value_parser = format::parse)]
    pub format: Format,
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The first record still there.
    Earliest,
    /// Only what comes from now on.
    Latest,
    /// This offset, in every partition.
    Offset(i64),
    /// The first record with this time (ms since 1970) or a later one.
    Timestamp(i64),
}

fn from(text: &str) -> Result<From, String> {
    match text {
        "earliest" => return Ok(From::Earliest),
        "latest" => return Ok(From::Latest),
        _ => {}
    }
    if let Some(stamp) = text.strip_prefix('@') {
        let time = time::OffsetDateTime::parse(stamp, &time::format_description::well_known::Rfc3339)
            .map_err(|error| format!("{error}: say @2026-01-01T00:00:00Z"))?;
        let millis = time.unix_timestamp_nanos().div_euclid(1_000_000);
        return i64::try_from(millis).map(From::Timestamp).map_err(|error| error.to_string());
    }
    match text.parse::<i64>() {
        Ok(offset) if offset >= 0 => Ok(From::Offset(offset)),
        _ => Err("say earliest, latest, an offset, or @ and an RFC 3339 time".to_owned()),
    }
}

pub(super) async fn run(_args: ConsumeArgs, _global: &Global, _world: &World) -> Result<(), Failure> {
    Err(Failure::Failed("this verb is not built yet".to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves every spelling of a start, and that others are refused.
    #[test]
    fn from_spellings() {
        assert_eq!(from("earliest"), Ok(From::Earliest));
        assert_eq!(from("latest"), Ok(From::Latest));
        assert_eq!(from("17"), Ok(From::Offset(17)));
        assert_eq!(from("@1970-01-01T00:00:01.5Z"), Ok(From::Timestamp(1500)));
        assert_eq!(from("@1970-01-01T02:00:00+02:00"), Ok(From::Timestamp(0)));
        for wrong in ["", "-1", "end", "@", "@2026", "9223372036854775808"] {
            assert!(from(wrong).is_err(), "{wrong}");
        }
    }
}
