"""`tidelog tier flush --trim-local`: everything in the store, nothing local, the same bytes again.

Owns: the flush, the status, its meaning.
Not here: reading (`check_clients`, `check_lines`).
"""

from report import need, same

FIELDS = (
    "topic",
    "partition",
    "group",
    "leader",
    "log_start",
    "tiered_until",
    "high_watermark",
    "local_start",
    "local_bytes",
    "remote_bytes",
)


def before(report, broker, ledger):
    with report.check("tier status before the flush: all of it is there"):
        for row in rows(broker, ledger):
            where = f"{row['topic']}/{row['partition']}"
            same(f"log start of {where}", row["log_start"], 0)
            same(f"high watermark of {where}", row["high_watermark"], wanted(ledger, row))
            need(row["log_start"] <= row["tiered_until"] <= row["high_watermark"], f"{where}: {row}")
            need(row["local_start"] <= row["tiered_until"], f"{where}: a hole between store and log: {row}")


def flush(report, broker, ledger):
    with report.check("tier flush --trim-local moves everything to the store"):
        broker.cli("tier", "flush", "--trim-local", "--timeout", "120s")
        for row in rows(broker, ledger):
            where = f"{row['topic']}/{row['partition']}"
            high = wanted(ledger, row)
            same(f"log start of {where}", row["log_start"], 0)
            same(f"high watermark of {where}", row["high_watermark"], high)
            same(f"tiered until of {where}", row["tiered_until"], high)
            same(f"local start of {where}", row["local_start"], high)
            same(f"local bytes of {where}", row["local_bytes"], 0)
            need((row["remote_bytes"] > 0) == (high > 0), f"{where}: remote bytes {row['remote_bytes']}")
    with report.check("tier flush again has nothing to do, and one topic can be named"):
        broker.cli("tier", "flush", "--trim-local")
        name = next(iter(ledger.topics))
        broker.cli("tier", "flush", "--topic", name)
        status = broker.cli_json("tier", "status", "--topic", name)
        same("topics", {row["topic"] for row in status["partitions"]}, {name})
    with report.check("tier flush of an unknown topic says so and exits with 1"):
        done = broker.cli("tier", "flush", "--topic", "nobody", check=False)
        same("exit code", done.returncode, 1)
        need(b"nobody" in done.stderr, f"{done.stderr!r}")
    with report.check("tier status prints a table"):
        table = broker.cli("tier", "status").decode()
        for name in ledger.topics:
            need(name in table, f"{name} is not in the table")


def rows(broker, ledger):
    """One row per partition of the ledger, each with every field."""
    status = broker.tier_status()
    mine = [row for row in status if row["topic"] in ledger.topics]
    for row in mine:
        missing = [name for name in FIELDS if name not in row]
        need(not missing, f"{row} lacks {missing}")
    named = sorted((row["topic"], row["partition"]) for row in mine)
    all_ = sorted((topic, p) for topic, parts in ledger.topics.items() for p in parts)
    same("partitions in the status", named, all_)
    return mine


def wanted(ledger, row):
    return len(ledger.topics[row["topic"]][row["partition"]])
