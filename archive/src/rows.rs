//! Columns being filled: one call appends one record's fields to the Arrow builders.
//!
//! Owns: what of a record goes into which column, and the translation of values that do not fit (timestamps, header keys).
//! Not here: where records come from (`source.rs`), Parquet (`datafile.rs`).
//! Spec: docs/formats/archive-table.md

use crate::schema;
use arrow_array::RecordBatch;
use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, Int32Builder, Int64Builder, ListBuilder, StringBuilder,
    StructBuilder, TimestampMicrosecondBuilder,
};
use arrow_schema::{ArrowError, SchemaRef};
use bytes::Bytes;
use std::sync::Arc;
use tidelog_model::batch::TimestampType;

/// Microseconds of a day.
const DAY_US: i64 = 86_400_000_000;
/// Day number of 0001-01-01 and of 9999-12-31: what every reader's calendar holds.
const CALENDAR_DAYS: std::ops::RangeInclusive<i64> = -719_162..=2_932_896;

/// Kafka's name for who set a timestamp.
#[must_use]
pub(crate) const fn timestamp_type_name(kind: TimestampType) -> &'static str {
    match kind {
        TimestampType::Create => "CreateTime",
        TimestampType::LogAppend => "LogAppendTime",
    }
}

/// One header: key bytes as produced, and a value that may be null.
pub(crate) type Header = (Bytes, Option<Bytes>);

/// What a record's batch says about it. Borrowed: nothing is copied before it is in a column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    /// Kafka partition.
    pub(crate) partition: i32,
    /// Kafka offset.
    pub(crate) offset: i64,
    /// Milliseconds since the epoch; any value.
    pub(crate) timestamp_ms: i64,
    /// Who set it.
    pub(crate) timestamp_type: TimestampType,
    /// Key, if not null.
    pub(crate) key: Option<&'a [u8]>,
    /// Value, if not null.
    pub(crate) value: Option<&'a [u8]>,
    /// Headers in order.
    pub(crate) headers: &'a [Header],
    /// Leader epoch of the batch.
    pub(crate) leader_epoch: i32,
    /// -1: none.
    pub(crate) producer_id: i64,
    /// Meaningful only with a producer id.
    pub(crate) producer_epoch: i16,
    /// The record's own sequence; -1: none.
    pub(crate) sequence: i32,
}

impl Row<'_> {
    /// The timestamp in microseconds, if 64 bits can hold it.
    #[must_use]
    pub(crate) const fn timestamp_us(&self) -> Option<i64> {
        self.timestamp_ms.checked_mul(1000)
    }

    /// Days since 1970-01-01 (UTC, rounded down), if it is a day that can have a partition of its own.
    #[must_use]
    pub(crate) fn day(&self) -> Option<i32> {
        let day = self.timestamp_us()?.div_euclid(DAY_US);
        if CALENDAR_DAYS.contains(&day) {
            i32::try_from(day).ok()
        } else {
            None
        }
    }

    /// Bytes of key, value, header keys and header values together.
    #[must_use]
    pub(crate) fn size(&self) -> usize {
        let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
        let headers = self
            .headers
            .iter()
            .map(|(key, value)| key.len() + length(value.as_deref()))
            .sum::<usize>();
        length(self.key) + length(self.value) + headers
    }
}

/// The builders of one file's next record batch.
pub(crate) struct RowColumns {
    schema: SchemaRef,
    partition: Int32Builder,
    offset: Int64Builder,
    timestamp: TimestampMicrosecondBuilder,
    timestamp_type: StringBuilder,
    key: BinaryBuilder,
    value: BinaryBuilder,
    headers: ListBuilder<StructBuilder>,
    leader_epoch: Int32Builder,
    producer_id: Int64Builder,
    producer_epoch: Int32Builder,
    sequence: Int32Builder,
    size: Int32Builder,
    timestamp_raw: Int64Builder,
    bytes: usize,
}

impl RowColumns {
    /// Bytes that a row's fixed-width columns take (ids, numbers, offsets, validity), for the memory account.
    const ROW_BYTES: usize = 96;
    /// The same for one header.
    const HEADER_BYTES: usize = 16;

    /// Empty columns.
    #[must_use]
    pub(crate) fn new() -> Self {
        let children: Vec<Box<dyn ArrayBuilder>> = vec![
            Box::new(StringBuilder::new()),
            Box::new(BinaryBuilder::new()),
            Box::new(BinaryBuilder::new()),
        ];
        let header = StructBuilder::new(schema::header_fields(), children);
        Self {
            schema: schema::arrow_schema(),
            partition: Int32Builder::new(),
            offset: Int64Builder::new(),
            timestamp: TimestampMicrosecondBuilder::new().with_timezone("UTC"),
            timestamp_type: StringBuilder::new(),
            key: BinaryBuilder::new(),
            value: BinaryBuilder::new(),
            headers: ListBuilder::new(header).with_field(Arc::new(schema::header_element())),
            leader_epoch: Int32Builder::new(),
            producer_id: Int64Builder::new(),
            producer_epoch: Int32Builder::new(),
            sequence: Int32Builder::new(),
            size: Int32Builder::new(),
            timestamp_raw: Int64Builder::new(),
            bytes: 0,
        }
    }

    /// Number of rows waiting.
    #[must_use]
    pub(crate) fn rows(&self) -> usize {
        self.offset.len()
    }

    /// Bytes they take, about.
    #[must_use]
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends one row.
    ///
    /// # Errors
    /// When the row's size does not fit 31 bits: the limits on batches exclude it.
    pub(crate) fn push(&mut self, row: &Row<'_>) -> Result<(), ArrowError> {
        let size = i32::try_from(row.size()).map_err(|_| {
            ArrowError::InvalidArgumentError("a record of more than 2 GiB".to_owned())
        })?;
        self.push_headers(row.headers)?;
        self.partition.append_value(row.partition);
        self.offset.append_value(row.offset);
        let timestamp = row.timestamp_us();
        self.timestamp.append_option(timestamp);
        self.timestamp_raw
            .append_option(timestamp.is_none().then_some(row.timestamp_ms));
        self.timestamp_type
            .append_value(timestamp_type_name(row.timestamp_type));
        self.key.append_option(row.key);
        self.value.append_option(row.value);
        self.leader_epoch.append_value(row.leader_epoch);
        let produced = row.producer_id >= 0;
        self.producer_id
            .append_option(produced.then_some(row.producer_id));
        self.producer_epoch
            .append_option(produced.then_some(i32::from(row.producer_epoch)));
        self.sequence
            .append_option((row.sequence >= 0).then_some(row.sequence));
        self.size.append_value(size);
        self.bytes += row.size() + Self::ROW_BYTES + row.headers.len() * Self::HEADER_BYTES;
        Ok(())
    }

    fn push_headers(&mut self, headers: &[Header]) -> Result<(), ArrowError> {
        let list = self.headers.values();
        for (key, value) in headers {
            let text = String::from_utf8_lossy(key);
            let exact = matches!(text, std::borrow::Cow::Borrowed(_));
            child::<StringBuilder>(list, 0)?.append_value(&text);
            child::<BinaryBuilder>(list, 1)?.append_option(value.as_deref());
            child::<BinaryBuilder>(list, 2)?.append_option((!exact).then_some(key.as_ref()));
            list.append(true);
        }
        self.headers.append(true);
        Ok(())
    }

    /// Takes what is there as a record batch and starts anew.
    ///
    /// # Errors
    /// When columns and schema disagree: a fault of this file.
    pub(crate) fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        self.bytes = 0;
        RecordBatch::try_new(
            Arc::clone(&self.schema),
            vec![
                Arc::new(self.partition.finish()),
                Arc::new(self.offset.finish()),
                Arc::new(self.timestamp.finish()),
                Arc::new(self.timestamp_type.finish()),
                Arc::new(self.key.finish()),
                Arc::new(self.value.finish()),
                Arc::new(self.headers.finish()),
                Arc::new(self.leader_epoch.finish()),
                Arc::new(self.producer_id.finish()),
                Arc::new(self.producer_epoch.finish()),
                Arc::new(self.sequence.finish()),
                Arc::new(self.size.finish()),
                Arc::new(self.timestamp_raw.finish()),
            ],
        )
    }
}

impl Default for RowColumns {
    fn default() -> Self {
        Self::new()
    }
}

fn child<T: ArrayBuilder>(list: &mut StructBuilder, index: usize) -> Result<&mut T, ArrowError> {
    list.field_builder(index)
        .ok_or_else(|| ArrowError::SchemaError(format!("header column {index} is of another type")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};

    fn row(timestamp_ms: i64, headers: &[Header]) -> Row<'_> {
        Row {
            partition: 3,
            offset: 70,
            timestamp_ms,
            timestamp_type: TimestampType::Create,
            key: None,
            value: Some(b"v"),
            headers,
            leader_epoch: 5,
            producer_id: -1,
            producer_epoch: -1,
            sequence: -1,
        }
    }

    /// Proves that days are rounded down, also before 1970, and that days outside the calendar have no partition.
    #[test]
    fn day_of_a_timestamp() {
        assert_eq!(row(0, &[]).day(), Some(0));
        assert_eq!(row(-1, &[]).day(), Some(-1));
        assert_eq!(row(86_399_999, &[]).day(), Some(0));
        assert_eq!(row(86_400_000, &[]).day(), Some(1));
        assert_eq!(
            row(253_402_300_799_999, &[]).day(),
            Some(2_932_896),
            "the last millisecond of the year 9999"
        );
        assert_eq!(row(253_402_300_800_000, &[]).day(), None);
        assert_eq!(
            row(-62_135_596_800_000, &[]).day(),
            Some(-719_162),
            "the first millisecond of the year 1"
        );
        assert_eq!(row(-62_135_596_800_001, &[]).day(), None);
        assert_eq!(row(i64::MAX, &[]).day(), None);
        assert_eq!(row(i64::MIN, &[]).day(), None);
    }

    /// Proves that a timestamp that does not fit microseconds is kept in milliseconds, and only then.
    #[test]
    fn timestamp_out_of_range_is_kept_raw() {
        let mut columns = RowColumns::new();
        columns.push(&row(i64::MAX, &[])).unwrap();
        columns.push(&row(-1, &[])).unwrap();
        let batch = columns.take().unwrap();
        let timestamp = batch.column(2).as_primitive::<TimestampMicrosecondType>();
        let raw = batch.column(12).as_primitive::<Int64Type>();
        assert!(timestamp.is_null(0));
        assert_eq!(raw.value(0), i64::MAX);
        assert_eq!(timestamp.value(1), -1000);
        assert!(raw.is_null(1));
        assert_eq!(columns.rows(), 0);
    }

    /// Proves that order, repetition, null values and bytes of headers survive, also where a key is not UTF-8.
    #[test]
    fn headers_are_kept_exactly() {
        let headers = vec![
            (Bytes::from_static(b"a"), Some(Bytes::from_static(b"1"))),
            (Bytes::from_static(b"a"), None),
            (Bytes::from_static(b"\xff\x00"), Some(Bytes::new())),
        ];
        let mut columns = RowColumns::new();
        columns.push(&row(0, &headers)).unwrap();
        columns.push(&row(0, &[])).unwrap();
        let batch = columns.take().unwrap();
        let list = batch.column(6).as_list::<i32>();
        assert_eq!(list.value(1).len(), 0);
        assert!(!list.is_null(1));
        let first = list.value(0);
        let first = first.as_struct();
        let (keys, values, raw) = (
            first.column(0).as_string::<i32>(),
            first.column(1).as_binary::<i32>(),
            first.column(2).as_binary::<i32>(),
        );
        assert_eq!(
            (keys.value(0), keys.value(1), keys.value(2)),
            ("a", "a", "\u{fffd}\0")
        );
        assert_eq!(values.value(0), b"1");
        assert!(values.is_null(1));
        assert_eq!(values.value(2), b"");
        assert!(raw.is_null(0) && raw.is_null(1));
        assert_eq!(raw.value(2), b"\xff\x00");
        assert_eq!(
            batch.column(11).as_primitive::<Int32Type>().value(0),
            1 + 1 + 1 + 1 + 2
        );
    }
}
