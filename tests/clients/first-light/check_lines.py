"""Real log lines, and made ones of the same shapes, through kcat and back: byte for byte, in order per key.

Owns: the way in and out through kcat, the comparison with the file.
Not here: the lines (`shapes`).
"""

import os
from pathlib import Path

import clients
import shapes
from report import need, same

ROOT = Path(__file__).resolve().parents[3]
MADE = int(os.environ.get("FIRST_LIGHT_LINES", "2000"))
SEED = os.environ.get("FIRST_LIGHT_SEED", "1")


def all_lines():
    return shapes.made(SEED, MADE) + shapes.real(ROOT)


def partitions(lines):
    """A file without keys comes back as one piece from one partition; OpenStack's from three, in part order."""
    return 1 if lines.name.startswith(("apache", "zookeeper")) else 3


def topic(lines):
    return f"lines-{lines.name}"


def produce(report, broker, ledger):
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for number, lines in enumerate(all_lines()):
        with report.check(f"{len(lines.lines)} lines of {lines.name} go in and come out through kcat"):
            clients.create_confluent(broker, topic(lines), partitions(lines))
            ledger.topic(topic(lines), partitions(lines))
            data = lines.data
            if lines.keyed:
                data = b"\n".join(lines.key(line) + b"\x01" + line for line in lines.lines)
            clients.produce_kcat(
                broker,
                topic(lines),
                data,
                delimiter="\\x01" if lines.keyed else None,
                codec=codecs[number % len(codecs)],
                idempotent=number % 2 == 0 or broker.may_repeat,
            )
            compare(lines, clients.read_kcat(broker, topic(lines)))
            found = clients.read_confluent(broker, topic(lines), partitions(lines))
            compare(lines, found)
            for partition, read in found.items():
                for offset, record in read:
                    ledger.put(topic(lines), partition, offset, record)
            ledger.complete(topic(lines))


def read_again(report, broker, why):
    with report.check(f"all lines come out again {why}"):
        for lines in all_lines():
            compare(lines, clients.read_kcat(broker, topic(lines)))


def compare(lines, found):
    """Nothing lost, nothing twice, nothing changed; what is ordered, in order."""
    read = [(r.key, r.value) for partition in sorted(found) for _, r in found[partition]]
    wanted = [(lines.key(line), line) for line in lines.lines]
    if partitions(lines) == 1:
        same("the whole file", b"\n".join(value for _, value in read), b"\n".join(value for _, value in wanted))
        return
    same("the lines, sorted", sorted(read, key=repr), sorted(wanted, key=repr))
    if lines.keyed:
        homes = {}
        for partition, records in found.items():
            for _, record in records:
                same(f"partition of key {record.key}", homes.setdefault(record.key, partition), partition)
        for key in homes:
            same(f"lines of key {key}", [v for k, v in read if k == key], [v for k, v in wanted if k == key])
        return
    for partition, records in found.items():
        rest = iter(wanted)
        ordered = all(any((r.key, r.value) == line for line in rest) for _, r in records)
        need(ordered, f"partition {partition} is not in the file's order")
