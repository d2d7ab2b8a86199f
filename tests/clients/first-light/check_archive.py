"""The archive, read from the store alone with every broker stopped, holds each record once, all fields equal.

Owns: reading the tables with DuckDB and with pyiceberg.
Not here: how they are written.
"""

import os
from pathlib import Path

import duckdb
import duckdb_ext
from pyiceberg.table import StaticTable

from ledger import Record
from report import need, same

COLUMNS = "_partition, _offset, _timestamp, _timestamp_type, _key, _value, _headers"


def flush(report, broker, ledger):
    """Returns topic -> where its newest table metadata is."""
    with report.check("archive flush brings every record into the tables"):
        broker.cli("archive", "flush", "--timeout", "170s")
        tables = {table["topic"]: table for table in broker.cli_json("archive", "status")["tables"]}
        for topic, count in ledger.counts().items():
            if count == 0 and topic not in tables:
                continue
            need(topic in tables, f"{topic} has no table; there are {sorted(tables)}")
            table = tables[topic]
            same(f"rows of {topic}", table["rows"], count)
            until = {row["partition"]: row["archived_until"] for row in table["partitions"]}
            same(f"archived until of {topic}", until, {p: len(r) for p, r in ledger.topics[topic].items()})
        return {topic: table["metadata_location"] for topic, table in tables.items() if topic in ledger.topics}


def again(report, broker, ledger, tables):
    with report.check("archive flush again adds nothing"):
        broker.cli("archive", "flush")
        status = {t["topic"]: t["metadata_location"] for t in broker.cli_json("archive", "status")["tables"]}
        for topic, location in tables.items():
            same(f"metadata of {topic}", status[topic], location)


def read(report, ledger, tables, s3):
    """With every broker stopped."""
    topics = [topic for topic, count in ledger.counts().items() if count]
    for name, rows in (("DuckDB", duckdb_rows(s3)), ("pyiceberg", pyiceberg_rows(s3))):
        with report.check(f"{name} finds each record of {len(topics)} tables once, all fields equal"):
            for topic in topics:
                ledger.compare(topic, by_partition(topic, rows(tables[topic])))


def by_partition(topic, rows):
    """Rows sorted by partition and offset, as a reader of the log would return them."""
    found = {}
    for partition, offset, stamp, stamp_type, key, value, headers in sorted(rows, key=lambda row: row[:2]):
        same(f"timestamp type of {topic}/{partition} at {offset}", stamp_type, "CreateTime")
        pairs = tuple((h["key"], none_or_bytes(h["value"])) for h in headers)
        record = Record(stamp // 1000, none_or_bytes(key), none_or_bytes(value), pairs)
        found.setdefault(partition, []).append((offset, record))
    return found


def none_or_bytes(value):
    return None if value is None else bytes(value)


def duckdb_rows(s3):
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg", "httpfs"):
        connection.execute(f"LOAD '{extension(name)}'")
    if s3:
        endpoint = s3.state["endpoint"].removeprefix("http://")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{s3.state['access_key']}', SECRET '{s3.state['secret_key']}', "
            f"REGION '{s3.state['region']}', ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
        )
    columns = COLUMNS.replace("_timestamp,", "epoch_us(_timestamp),")

    def rows(location):
        return connection.execute(f"SELECT {columns} FROM iceberg_scan(?)", [location]).fetchall()

    return rows


def extension(name):
    folder = Path(duckdb_ext.__path__[0]) if hasattr(duckdb_ext, "__path__") else Path(duckdb_ext.__file__).parent
    found = list(folder.rglob(f"{name}.duckdb_extension"))
    need(len(found) == 1, f"extension {name} in {folder}: {found}")
    return os.fspath(found[0])


def pyiceberg_rows(s3):
    properties = {}
    if s3:
        properties = {
            "s3.endpoint": s3.state["endpoint"],
            "s3.access-key-id": s3.state["access_key"],
            "s3.secret-access-key": s3.state["secret_key"],
            "s3.region": s3.state["region"],
        }

    def rows(location):
        table = StaticTable.from_metadata(location, properties).scan().to_arrow()
        names = COLUMNS.split(", ")
        # As a count of microseconds: Python's datetime has a smaller range.
        stamps = table.column("_timestamp").cast("int64").to_pylist()
        columns = [stamps if name == "_timestamp" else table.column(name).to_pylist() for name in names]
        return list(zip(*columns, strict=True))

    return rows
