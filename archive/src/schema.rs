//! Schema of the archive table: Iceberg's view of it, Arrow's view of it, partition specs, sort order.
//!
//! Owns: names, field ids and types of all columns.
//! Not here: filling the columns (`rows.rs`), the table's life (`table.rs`, `commit.rs`).
//! Spec: docs/formats/archive-table.md

use arrow_schema::{
    DataType, Field, Fields, Schema as ArrowSchema, SchemaRef as ArrowSchemaRef, TimeUnit,
};
use iceberg::spec::{
    ListType, NestedField, NestedFieldRef, NullOrder, PrimitiveType, Schema, SortDirection,
    SortField, SortOrder, StructType, TableMetadata, Transform, Type, UnboundPartitionSpec,
};
use std::collections::HashMap;
use std::sync::Arc;

/// What the parquet library reads a column's field id from.
const FIELD_ID_KEY: &str = "PARQUET:field_id";

/// Field ids, as in the spec. They never change their meaning.
pub mod field {
    /// `_partition`
    pub const PARTITION: i32 = 1;
    /// `_offset`
    pub const OFFSET: i32 = 2;
    /// `_timestamp`
    pub const TIMESTAMP: i32 = 3;
    /// `_timestamp_type`
    pub const TIMESTAMP_TYPE: i32 = 4;
    /// `_key`
    pub const KEY: i32 = 5;
    /// `_value`
    pub const VALUE: i32 = 6;
    /// `_headers`
    pub const HEADERS: i32 = 7;
    /// `_leader_epoch`
    pub const LEADER_EPOCH: i32 = 8;
    /// `_producer_id`
    pub const PRODUCER_ID: i32 = 9;
    /// `_producer_epoch`
    pub const PRODUCER_EPOCH: i32 = 10;
    /// `_sequence`
    pub const SEQUENCE: i32 = 11;
    /// `_size`
    pub const SIZE: i32 = 12;
    /// `_timestamp_raw`
    pub const TIMESTAMP_RAW: i32 = 13;
    /// `_headers.element`
    pub const HEADER: i32 = 14;
    /// `_headers.element.key`
    pub const HEADER_KEY: i32 = 15;
    /// `_headers.element.value`
    pub const HEADER_VALUE: i32 = 16;
    /// `_headers.element.raw_key`
    pub const HEADER_RAW_KEY: i32 = 17;
}

/// Partition spec of files that hold rows of one day.
pub const SPEC_DAY: i32 = 0;
/// Partition spec of files that hold rows of any days.
pub const SPEC_ANY: i32 = 1;
/// Sort order of all data files.
pub const SORT_ORDER: i32 = 1;
/// Name of the day partition field.
pub const DAY_FIELD: &str = "_timestamp_day";

fn primitive(required: bool, id: i32, name: &str, kind: PrimitiveType) -> NestedFieldRef {
    Arc::new(NestedField::new(id, name, Type::Primitive(kind), required))
}

/// The table's schema as Iceberg sees it.
///
/// # Errors
/// Only if the ids above were not unique: a fault of this file, caught by its test.
pub fn iceberg_schema() -> iceberg::Result<Schema> {
    let header = StructType::new(vec![
        primitive(true, field::HEADER_KEY, "key", PrimitiveType::String),
        primitive(false, field::HEADER_VALUE, "value", PrimitiveType::Binary),
        primitive(
            false,
            field::HEADER_RAW_KEY,
            "raw_key",
            PrimitiveType::Binary,
        ),
    ]);
    let element = NestedField::list_element(field::HEADER, Type::Struct(header), true);
    let headers = ListType::new(Arc::new(element));
    Schema::builder()
        .with_fields(vec![
            primitive(true, field::PARTITION, "_partition", PrimitiveType::Int),
            primitive(true, field::OFFSET, "_offset", PrimitiveType::Long),
            primitive(
                false,
                field::TIMESTAMP,
                "_timestamp",
                PrimitiveType::Timestamptz,
            ),
            primitive(
                true,
                field::TIMESTAMP_TYPE,
                "_timestamp_type",
                PrimitiveType::String,
            ),
            primitive(false, field::KEY, "_key", PrimitiveType::Binary),
            primitive(false, field::VALUE, "_value", PrimitiveType::Binary),
            Arc::new(NestedField::required(
                field::HEADERS,
                "_headers",
                Type::List(headers),
            )),
            primitive(
                true,
                field::LEADER_EPOCH,
                "_leader_epoch",
                PrimitiveType::Int,
            ),
            primitive(
                false,
                field::PRODUCER_ID,
                "_producer_id",
                PrimitiveType::Long,
            ),
            primitive(
                false,
                field::PRODUCER_EPOCH,
                "_producer_epoch",
                PrimitiveType::Int,
            ),
            primitive(false, field::SEQUENCE, "_sequence", PrimitiveType::Int),
            primitive(true, field::SIZE, "_size", PrimitiveType::Int),
            primitive(
                false,
                field::TIMESTAMP_RAW,
                "_timestamp_raw",
                PrimitiveType::Long,
            ),
        ])
        .build()
}

/// Spec 0: `day(_timestamp)`.
///
/// # Errors
/// As [`iceberg_schema`].
pub fn day_spec() -> iceberg::Result<UnboundPartitionSpec> {
    Ok(UnboundPartitionSpec::builder()
        .with_spec_id(SPEC_DAY)
        .add_partition_field(field::TIMESTAMP, DAY_FIELD, Transform::Day)?
        .build())
}

/// Spec 1: not partitioned.
#[must_use]
pub fn any_spec() -> UnboundPartitionSpec {
    UnboundPartitionSpec::builder()
        .with_spec_id(SPEC_ANY)
        .build()
}

/// Sort order 1: `(_partition, _offset)` ascending.
///
/// # Errors
/// As [`iceberg_schema`].
pub fn sort_order(schema: &Schema) -> iceberg::Result<SortOrder> {
    let ascending = |source_id| {
        SortField::builder()
            .source_id(source_id)
            .transform(Transform::Identity)
            .direction(SortDirection::Ascending)
            .null_order(NullOrder::First)
            .build()
    };
    SortOrder::builder()
        .with_order_id(i64::from(SORT_ORDER))
        .with_sort_field(ascending(field::PARTITION))
        .with_sort_field(ascending(field::OFFSET))
        .build(schema)
}

/// Checks that our files still fit a table: all our columns and partition specs are as we made them. Columns that
/// others added are no hindrance while they may be null.
///
/// # Errors
/// What does not fit.
pub fn check(metadata: &TableMetadata) -> Result<(), String> {
    let ours = iceberg_schema().map_err(|error| error.to_string())?;
    let current = metadata.current_schema().as_struct();
    for field in ours.as_struct().fields() {
        match current.field_by_id(field.id) {
            Some(found) if found.name == field.name && found.field_type == field.field_type => {}
            _ => return Err(format!("column {} is not as it was made", field.name)),
        }
    }
    let mut added = current
        .fields()
        .iter()
        .filter(|field| ours.as_struct().field_by_id(field.id).is_none());
    if let Some(field) = added.find(|field| field.required) {
        return Err(format!(
            "column {} was added and must not be null",
            field.name
        ));
    }
    let day = metadata
        .partition_spec_by_id(SPEC_DAY)
        .map(|spec| spec.fields().to_vec())
        .unwrap_or_default();
    let by_day = day
        .iter()
        .map(|field| (field.source_id, field.transform))
        .collect::<Vec<_>>();
    let any = metadata.partition_spec_by_id(SPEC_ANY);
    if by_day != [(field::TIMESTAMP, Transform::Day)]
        || !any.is_some_and(|spec| spec.is_unpartitioned())
    {
        return Err("its partition specs 0 and 1 are not as they were made".to_owned());
    }
    Ok(())
}

fn arrow_field(name: &str, kind: DataType, nullable: bool, id: i32) -> Field {
    Field::new(name, kind, nullable)
        .with_metadata(HashMap::from([(FIELD_ID_KEY.to_owned(), id.to_string())]))
}

/// Fields of the struct that holds one header.
#[must_use]
pub fn header_fields() -> Fields {
    Fields::from(vec![
        arrow_field("key", DataType::Utf8, false, field::HEADER_KEY),
        arrow_field("value", DataType::Binary, true, field::HEADER_VALUE),
        arrow_field("raw_key", DataType::Binary, true, field::HEADER_RAW_KEY),
    ])
}

/// The element field of the header list.
#[must_use]
pub fn header_element() -> Field {
    arrow_field(
        "element",
        DataType::Struct(header_fields()),
        false,
        field::HEADER,
    )
}

/// The table's schema as the Parquet writer sees it: same names, ids, order and nullability as [`iceberg_schema`].
#[must_use]
pub fn arrow_schema() -> ArrowSchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(ArrowSchema::new(vec![
        arrow_field("_partition", DataType::Int32, false, field::PARTITION),
        arrow_field("_offset", DataType::Int64, false, field::OFFSET),
        arrow_field("_timestamp", time, true, field::TIMESTAMP),
        arrow_field(
            "_timestamp_type",
            DataType::Utf8,
            false,
            field::TIMESTAMP_TYPE,
        ),
        arrow_field("_key", DataType::Binary, true, field::KEY),
        arrow_field("_value", DataType::Binary, true, field::VALUE),
        arrow_field(
            "_headers",
            DataType::List(Arc::new(header_element())),
            false,
            field::HEADERS,
        ),
        arrow_field("_leader_epoch", DataType::Int32, false, field::LEADER_EPOCH),
        arrow_field("_producer_id", DataType::Int64, true, field::PRODUCER_ID),
        arrow_field(
            "_producer_epoch",
            DataType::Int32,
            true,
            field::PRODUCER_EPOCH,
        ),
        arrow_field("_sequence", DataType::Int32, true, field::SEQUENCE),
        arrow_field("_size", DataType::Int32, false, field::SIZE),
        arrow_field(
            "_timestamp_raw",
            DataType::Int64,
            true,
            field::TIMESTAMP_RAW,
        ),
    ]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn leaves(fields: &[NestedFieldRef], into: &mut Vec<(i32, String, bool)>) {
        for field in fields {
            into.push((field.id, field.name.clone(), field.required));
            match field.field_type.as_ref() {
                Type::Struct(inner) => leaves(inner.fields(), into),
                Type::List(list) => leaves(std::slice::from_ref(&list.element_field), into),
                _ => {}
            }
        }
    }

    fn arrow_leaves(fields: &Fields, into: &mut Vec<(i32, String, bool)>) {
        for field in fields {
            let id = field.metadata()[FIELD_ID_KEY].parse().unwrap();
            into.push((id, field.name().clone(), !field.is_nullable()));
            match field.data_type() {
                DataType::Struct(inner) => arrow_leaves(inner, into),
                DataType::List(element) => {
                    arrow_leaves(&Fields::from(vec![element.as_ref().clone()]), into)
                }
                _ => {}
            }
        }
    }

    /// Proves that what Iceberg's readers are told and what is in the files is the same set of columns.
    #[test]
    fn arrow_and_iceberg_agree_on_ids_names_and_nullability() {
        let mut iceberg = Vec::new();
        leaves(iceberg_schema().unwrap().as_struct().fields(), &mut iceberg);
        let mut arrow = Vec::new();
        arrow_leaves(arrow_schema().fields(), &mut arrow);
        assert_eq!(iceberg, arrow);
        assert_eq!(iceberg.len(), 17);
    }
}
