"""Compares an archive table, read by DuckDB and by pyiceberg, with the records that were produced.

    archive_check.py --table URI --metadata URI --expected FILE [--reader duckdb|pyiceberg]

FILE has one JSON object per record: partition, offset, and any of timestamp (ms), timestamp_type, key, value (base64 or
null), headers (list of [key, value], both base64, value may be null), leader_epoch, producer_id, producer_epoch,
sequence, size. Fields that are not in the file are not compared. S3 settings come from AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION.

Each reader reads everything, then again with predicates that prune partitions, files and row groups (field report A36),
and DuckDB by the table's folder too, that is by version-hint.text. Prints one line per check; exit code 1 on a difference.

Owns: the comparison. Not here: making tables.
"""

import argparse
import base64
import json
import os
import sys
from pathlib import Path

DAY_US = 86_400_000_000
COLUMNS = (
    "_partition _offset _timestamp _timestamp_type _key _value _headers _leader_epoch _producer_id _producer_epoch "
    "_sequence _size _timestamp_raw"
).split()


class Difference(Exception):
    """What was found is not what was produced."""


def same(what, found, expected):
    if found != expected:
        raise Difference(f"{what}: found {str(found)[:300]}, expected {str(expected)[:300]}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--table", required=True)
    arguments.add_argument("--metadata", required=True)
    arguments.add_argument("--expected", required=True, type=Path)
    arguments.add_argument("--reader", choices=["duckdb", "pyiceberg"], action="append")
    options = arguments.parse_args()
    with options.expected.open(encoding="utf-8") as lines:
        expected = sorted(map(json.loads, lines), key=lambda row: (row["partition"], row["offset"]))
    failed = False
    for name in options.reader or ["duckdb", "pyiceberg"]:
        for check, run in CHECKS[name](options).items():
            try:
                print(f"ok   {name}: {check}: {run(expected)} rows", flush=True)
            except Difference as difference:
                failed = True
                print(f"FAIL {name}: {check}: {difference}", flush=True)
    sys.exit(1 if failed else 0)


def compare(rows, expected):
    """`rows` are tuples of COLUMNS."""
    rows = sorted((dict(zip(COLUMNS, row, strict=True)) for row in rows), key=lambda r: (r["_partition"], r["_offset"]))
    same("number of rows", len(rows), len(expected))
    for row, want in zip(rows, expected, strict=True):
        found = normal(row)
        for field, value in want.items():
            same(f"{field} at {want['partition']}/{want['offset']}", found[field], value)
    return len(rows)


def normal(row):
    stamp = row["_timestamp_raw"] if row["_timestamp"] is None else row["_timestamp"] // 1000
    found = {name[1:]: row[name] for name in COLUMNS}
    headers = [(h["raw_key"] if h["raw_key"] is not None else h["key"].encode(), h["value"]) for h in row["_headers"]]
    found.update(
        timestamp=stamp,
        key=text(row["_key"]),
        value=text(row["_value"]),
        headers=[[text(key), text(value)] for key, value in headers],
    )
    return found


def text(value):
    return None if value is None else base64.b64encode(bytes(value)).decode()


def predicates(expected):
    """Name, SQL condition, pyiceberg's form of it, and which rows it keeps. Built around a row in the middle."""
    middle = expected[len(expected) // 2]
    partition, offset = middle["partition"], middle["offset"]
    day = in_range(middle)["timestamp"] * 1000 // DAY_US if in_range(middle) else 0
    low, high = iso(day * DAY_US), iso((day + 1) * DAY_US)
    return [
        ("offset range", f"_partition = {partition} AND _offset >= {offset}", None,
         lambda r: r["partition"] == partition and r["offset"] >= offset),
        ("one offset", f"_partition = {partition} AND _offset = {offset}", None,
         lambda r: r["partition"] == partition and r["offset"] == offset),
        ("one day", f"_timestamp >= TIMESTAMPTZ '{low}' AND _timestamp < TIMESTAMPTZ '{high}'",
         f"_timestamp >= '{low}' AND _timestamp < '{high}'",
         lambda r: in_range(r) is not None and r["timestamp"] * 1000 // DAY_US == day),
        ("nothing", "_offset > 9000000000000000000", None, lambda r: r["offset"] > 9_000_000_000_000_000_000),
    ]  # fmt: skip


def in_range(row):
    """The row, if its timestamp is one that the readers' own calendars have."""
    return row if "timestamp" in row and 0 <= row["timestamp"] < 200_000_000_000_000 else None


def iso(us):
    from datetime import UTC, datetime, timedelta

    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).isoformat()


def duckdb_checks(options):
    import duckdb
    import duckdb_ext

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    folder = Path(next(iter(duckdb_ext.__path__)))
    for name in ("avro", "httpfs", "iceberg"):
        (found,) = folder.rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{found}'")
    if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        connection.execute(
            "CREATE SECRET (TYPE s3, URL_STYLE 'path', USE_SSL {}, ENDPOINT '{}', KEY_ID '{}', SECRET '{}', REGION '{}')"
            .format(str(endpoint.startswith("https")).lower(), endpoint.split("://")[1], os.environ["AWS_ACCESS_KEY_ID"],
                    os.environ["AWS_SECRET_ACCESS_KEY"], os.environ.get("AWS_REGION", "us-east-1"))
        )  # fmt: skip
    columns = ", ".join(COLUMNS).replace("_timestamp,", "epoch_us(_timestamp),")

    def rows(location, condition="true"):
        query = f"SELECT {columns} FROM iceberg_scan(?) WHERE {condition}"
        return connection.execute(query, [location]).fetchall()

    def count(condition, keep, expected):
        query = f"SELECT count(*) FROM iceberg_scan(?) WHERE {condition}"
        (found,) = connection.execute(query, [options.metadata]).fetchone()
        kept = list(filter(keep, expected))
        same("count", found, len(kept))
        return compare(rows(options.metadata, condition), kept)

    checks = {
        "all rows, by metadata file": lambda expected: compare(rows(options.metadata), expected),
        "all rows, by folder": lambda expected: compare(rows(options.table), expected),
    }
    for number, name in enumerate(["offset range", "one offset", "one day", "nothing"]):
        checks[name] = lambda expected, n=number: count(predicates(expected)[n][1], predicates(expected)[n][3], expected)
    return checks


def pyiceberg_checks(options):
    from pyiceberg.table import StaticTable

    properties = {
        key: os.environ[name]
        for key, name in [
            ("s3.endpoint", "AWS_ENDPOINT_URL"),
            ("s3.access-key-id", "AWS_ACCESS_KEY_ID"),
            ("s3.secret-access-key", "AWS_SECRET_ACCESS_KEY"),
            ("s3.region", "AWS_REGION"),
        ]
        if name in os.environ
    }
    table = StaticTable.from_metadata(options.metadata, properties)

    def rows(condition=None):
        scan = table.scan() if condition is None else table.scan(row_filter=condition)
        found = scan.to_arrow()
        # As a count of microseconds: Python's datetime has a smaller range.
        columns = [
            (found.column(name).cast("int64") if name == "_timestamp" else found.column(name)).to_pylist()
            for name in COLUMNS
        ]
        return list(zip(*columns, strict=True))

    def filtered(number, expected):
        _, sql, own, keep = predicates(expected)[number]
        return compare(rows(own or sql), list(filter(keep, expected)))

    checks = {"all rows": lambda expected: compare(rows(), expected)}
    for number, name in enumerate(["offset range", "one offset", "one day", "nothing"]):
        checks[name] = lambda expected, n=number: filtered(n, expected)
    return checks


CHECKS = {"duckdb": duckdb_checks, "pyiceberg": pyiceberg_checks}

if __name__ == "__main__":
    main()
