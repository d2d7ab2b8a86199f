//! One Parquet data file in the making, and what the table must know of a finished one.
//!
//! Owns: Parquet settings, file names, column statistics for the manifest.
//! Not here: which rows share a file (`fileset.rs`), putting it into the store (`table.rs`).
//! Spec: docs/formats/archive-table.md (Parquet, Place and names)

use crate::config::ArchiveConfig;
use crate::error::ArchiveError;
use crate::rows::{Row, RowColumns};
use crate::schema::{self, field};
use bytes::Bytes;
use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, Datum, Literal, Struct,
};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use std::collections::HashMap;

/// Rows handed to the encoder at once.
const BATCH_ROWS: usize = 8192;
/// … or when they take this many bytes.
const BATCH_BYTES: usize = 1024 * 1024;

/// Which rows a file takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Slot {
    /// Rows of one day (days since 1970-01-01).
    Day(i32),
    /// Rows of any days.
    Any,
}

/// First and last offset of one Kafka partition in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    partition: i32,
    first: i64,
    last: i64,
}

/// Smallest and largest value so far.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds(Option<(i64, i64)>);

impl Bounds {
    fn add(&mut self, value: i64) {
        self.0 = Some(self.0.map_or((value, value), |(low, high)| {
            (low.min(value), high.max(value))
        }));
    }
}

/// A data file that still takes rows. Rows come in `(partition, offset)` order.
pub(crate) struct DataFileWriter {
    slot: Slot,
    columns: RowColumns,
    writer: ArrowWriter<Vec<u8>>,
    rows: u64,
    ranges: Vec<Range>,
    offsets: Bounds,
    timestamps: Bounds,
    timestamp_nulls: u64,
}

/// A finished data file: bytes, name, and what the manifest says about it.
#[derive(Debug)]
pub(crate) struct FinishedFile {
    /// Name under the table's location, with `/` between its parts.
    pub(crate) name: String,
    /// The file.
    pub(crate) bytes: Bytes,
    /// Number of rows.
    pub(crate) rows: u64,
    slot: Slot,
    partitions: (i32, i32),
    offsets: (i64, i64),
    timestamps: Option<(i64, i64)>,
    timestamp_nulls: u64,
    column_bytes: HashMap<i32, u64>,
    row_group_starts: Vec<i64>,
}

impl DataFileWriter {
    /// An empty file for the rows of `slot`.
    ///
    /// # Errors
    /// [`ArchiveError::Internal`] only.
    pub(crate) fn new(config: &ArchiveConfig, slot: Slot) -> Result<Self, ArchiveError> {
        let options = ArrowWriterOptions::new()
            .with_properties(properties(config)?)
            .with_skip_arrow_metadata(true)
            .with_schema_root("table".to_owned());
        let writer = ArrowWriter::try_new_with_options(Vec::new(), schema::arrow_schema(), options)
            .map_err(ArchiveError::internal("open a Parquet writer"))?;
        Ok(Self {
            slot,
            columns: RowColumns::new(),
            writer,
            rows: 0,
            ranges: Vec::new(),
            offsets: Bounds::default(),
            timestamps: Bounds::default(),
            timestamp_nulls: 0,
        })
    }

    /// Appends a row.
    ///
    /// # Errors
    /// [`ArchiveError::Internal`] only; the file is then not usable any more.
    pub(crate) fn push(&mut self, row: &Row<'_>) -> Result<(), ArchiveError> {
        self.columns
            .push(row)
            .map_err(ArchiveError::internal("append a row"))?;
        self.rows += 1;
        self.offsets.add(row.offset);
        match row.timestamp_us() {
            Some(us) => self.timestamps.add(us),
            None => self.timestamp_nulls += 1,
        }
        match self.ranges.last_mut() {
            Some(range) if range.partition == row.partition => range.last = row.offset,
            _ => self.ranges.push(Range {
                partition: row.partition,
                first: row.offset,
                last: row.offset,
            }),
        }
        if self.columns.rows() >= BATCH_ROWS || self.columns.bytes() >= BATCH_BYTES {
            self.encode()
        } else {
            Ok(())
        }
    }

    fn encode(&mut self) -> Result<(), ArchiveError> {
        let batch = self
            .columns
            .take()
            .map_err(ArchiveError::internal("build a record batch"))?;
        self.writer
            .write(&batch)
            .map_err(ArchiveError::internal("encode a record batch"))
    }

    /// Bytes the file will have, about, if it is finished now.
    #[must_use]
    pub(crate) fn file_bytes(&self) -> usize {
        self.writer.bytes_written() + self.writer.in_progress_size() + self.columns.bytes()
    }

    /// Bytes of memory it holds.
    #[must_use]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.writer.inner().capacity() + self.writer.memory_size() + self.columns.bytes()
    }

    /// Ends the file. `None` when it has no row.
    ///
    /// # Errors
    /// [`ArchiveError::Internal`] only.
    pub(crate) fn finish(mut self) -> Result<Option<FinishedFile>, ArchiveError> {
        let (Some(first), Some(last), Some(offsets)) = (
            self.ranges.first().copied(),
            self.ranges.last().copied(),
            self.offsets.0,
        ) else {
            return Ok(None);
        };
        if self.columns.rows() > 0 {
            self.encode()?;
        }
        let metadata = self
            .writer
            .finish()
            .map_err(ArchiveError::internal("finish a Parquet file"))?;
        let bytes = Bytes::from(std::mem::take(self.writer.inner_mut()));
        let name = file_name(self.slot, first, last, self.rows, &self.ranges, &bytes);
        Ok(Some(FinishedFile {
            name,
            rows: self.rows,
            slot: self.slot,
            partitions: (first.partition, last.partition),
            offsets,
            timestamps: self.timestamps.0,
            timestamp_nulls: self.timestamp_nulls,
            column_bytes: column_bytes(&metadata),
            row_group_starts: metadata
                .row_groups()
                .iter()
                .filter_map(|group| group.file_offset())
                .collect(),
            bytes,
        }))
    }
}

impl FinishedFile {
    /// The partition spec it belongs to.
    #[must_use]
    pub(crate) const fn spec_id(&self) -> i32 {
        match self.slot {
            Slot::Day(_) => schema::SPEC_DAY,
            Slot::Any => schema::SPEC_ANY,
        }
    }

    /// Length of the file.
    #[must_use]
    pub(crate) fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The manifest's entry for it, stored at `uri`.
    ///
    /// # Errors
    /// [`ArchiveError::Internal`] only.
    pub(crate) fn describe(&self, uri: String) -> Result<DataFile, ArchiveError> {
        let mut lower = HashMap::from([
            (field::PARTITION, Datum::int(self.partitions.0)),
            (field::OFFSET, Datum::long(self.offsets.0)),
        ]);
        let mut upper = HashMap::from([
            (field::PARTITION, Datum::int(self.partitions.1)),
            (field::OFFSET, Datum::long(self.offsets.1)),
        ]);
        if let Some((low, high)) = self.timestamps {
            lower.insert(field::TIMESTAMP, Datum::timestamptz_micros(low));
            upper.insert(field::TIMESTAMP, Datum::timestamptz_micros(high));
        }
        let counted = [field::PARTITION, field::OFFSET, field::TIMESTAMP];
        let partition = match self.slot {
            Slot::Day(day) => Struct::from_iter([Some(Literal::date(day))]),
            Slot::Any => Struct::empty(),
        };
        DataFileBuilder::default()
            .content(DataContentType::Data)
            .file_path(uri)
            .file_format(DataFileFormat::Parquet)
            .partition(partition)
            .partition_spec_id(self.spec_id())
            .record_count(self.rows)
            .file_size_in_bytes(self.length())
            .column_sizes(self.column_bytes.clone())
            .value_counts(counted.map(|id| (id, self.rows)).into())
            .null_value_counts(HashMap::from([
                (field::PARTITION, 0),
                (field::OFFSET, 0),
                (field::TIMESTAMP, self.timestamp_nulls),
            ]))
            .lower_bounds(lower)
            .upper_bounds(upper)
            .split_offsets(Some(self.row_group_starts.clone()))
            .sort_order_id(schema::SORT_ORDER)
            .build()
            .map_err(ArchiveError::internal("describe a data file"))
    }
}

fn properties(config: &ArchiveConfig) -> Result<WriterProperties, ArchiveError> {
    let level =
        ZstdLevel::try_new(3).map_err(ArchiveError::internal("set the compression level"))?;
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_max_row_group_bytes(Some(config.row_group_bytes.max(1)))
        .set_max_row_group_row_count(Some(config.row_group_rows.max(1)))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_column_dictionary_enabled(ColumnPath::from("_value"), false);
    for name in ["_offset", "_timestamp"] {
        let path = ColumnPath::from(name);
        builder = builder
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    for name in ["_partition", "_offset", "_timestamp"] {
        builder =
            builder.set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::Chunk);
    }
    Ok(builder.build())
}

/// Compressed bytes by field id, summed over row groups.
fn column_bytes(metadata: &ParquetMetaData) -> HashMap<i32, u64> {
    let mut bytes = HashMap::new();
    for column in metadata
        .row_groups()
        .iter()
        .flat_map(|group| group.columns())
    {
        let info = column.column_descr().self_type().get_basic_info();
        if info.has_id() {
            *bytes.entry(info.id()).or_insert(0) +=
                u64::try_from(column.compressed_size()).unwrap_or(0);
        }
    }
    bytes
}

fn file_name(
    slot: Slot,
    first: Range,
    last: Range,
    rows: u64,
    ranges: &[Range],
    bytes: &Bytes,
) -> String {
    let folder = match slot {
        Slot::Day(day) => format!("{}={}", schema::DAY_FIELD, date(day)),
        Slot::Any => "any".to_owned(),
    };
    let mut covered = 0;
    for range in ranges {
        covered = crc32c::crc32c_append(covered, &range.partition.to_be_bytes());
        covered = crc32c::crc32c_append(covered, &range.first.to_be_bytes());
        covered = crc32c::crc32c_append(covered, &range.last.to_be_bytes());
    }
    let content = crc32c::crc32c(bytes);
    let (p0, o0, p1, o1) = (first.partition, first.first, last.partition, last.last);
    format!(
        "data/{folder}/{p0:05}-{o0:020}-{p1:05}-{o1:020}-{rows}-{covered:08x}-{content:08x}.parquet"
    )
}

/// `YYYY-MM-DD` of a day within the years 1 to 9999, by Howard Hinnant's `civil_from_days`.
fn date(day: i32) -> String {
    let shifted = i64::from(day) + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_model::batch::TimestampType;

    fn file(offsets: std::ops::Range<i64>, value: &[u8]) -> FinishedFile {
        let mut writer =
            DataFileWriter::new(&ArchiveConfig::new("file:///t"), Slot::Day(0)).unwrap();
        for offset in offsets {
            let row = Row {
                partition: 1,
                offset,
                timestamp_ms: 1000 - offset,
                timestamp_type: TimestampType::Create,
                key: Some(b"k"),
                value: Some(value),
                headers: &[],
                leader_epoch: 0,
                producer_id: -1,
                producer_epoch: -1,
                sequence: -1,
            };
            writer.push(&row).unwrap();
        }
        writer.finish().unwrap().unwrap()
    }

    /// Proves that the calendar is right at the edges where such code goes wrong.
    #[test]
    fn dates() {
        for (day, text) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
            (-719_162, "0001-01-01"),
            (2_932_896, "9999-12-31"),
        ] {
            assert_eq!(date(day), text);
        }
    }

    /// Proves that the same rows give the same name and bytes, and that other rows or other bytes give another name.
    #[test]
    fn a_name_has_one_content() {
        let (one, same) = (file(0..100, b"v"), file(0..100, b"v"));
        assert_eq!((&one.name, &one.bytes), (&same.name, &same.bytes));
        assert!(one.name.starts_with("data/_timestamp_day=1970-01-01/00001-00000000000000000000-00001-00000000000000000099-100-"));
        assert_ne!(one.name, file(0..100, b"w").name);
        assert_ne!(one.name, file(0..101, b"v").name);
    }

    /// Proves that a file without rows is no file.
    #[test]
    fn no_rows_no_file() {
        let writer = DataFileWriter::new(&ArchiveConfig::new("file:///t"), Slot::Any).unwrap();
        assert!(writer.finish().unwrap().is_none());
    }

    /// Proves that row groups end by rows and by bytes, that the file says so, and that it has no page index (A36).
    #[test]
    fn row_groups_and_no_page_index() {
        use parquet::file::reader::{FileReader, SerializedFileReader};
        let mut config = ArchiveConfig::new("file:///t");
        config.row_group_rows = 10_000;
        let mut writer = DataFileWriter::new(&config, Slot::Any).unwrap();
        for offset in 0..25_000 {
            let row = Row {
                partition: 0,
                offset,
                timestamp_ms: offset,
                timestamp_type: TimestampType::LogAppend,
                key: None,
                value: None,
                headers: &[],
                leader_epoch: 0,
                producer_id: 1,
                producer_epoch: 0,
                sequence: 0,
            };
            writer.push(&row).unwrap();
        }
        let file = writer.finish().unwrap().unwrap();
        let reader = SerializedFileReader::new(file.bytes.clone()).unwrap();
        let groups = reader.metadata().row_groups();
        assert_eq!(
            groups
                .iter()
                .map(|group| group.num_rows())
                .collect::<Vec<_>>(),
            [10_000, 10_000, 5_000]
        );
        assert_eq!(file.row_group_starts.len(), 3);
        for column in groups.iter().flat_map(|group| group.columns()) {
            assert!(
                column.offset_index_offset().is_none() && column.column_index_offset().is_none()
            );
        }
        assert!(groups[0].column(1).statistics().is_some());
        assert!(groups[0].column(5).statistics().is_none());
        assert_eq!(file.column_bytes.len(), 15, "one entry per leaf column");
    }
}
