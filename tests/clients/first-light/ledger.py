"""What was produced and must come back: the model every reader is compared with.

Owns: the record as all clients see it, the comparison.
Not here: reading and writing it.
"""

from dataclasses import dataclass, field

from report import Difference, need, short


@dataclass(frozen=True)
class Record:
    """One record. Headers keep order, repeats and nulls."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class Ledger:
    """Records by topic, partition and offset."""

    topics: dict[str, dict[int, dict[int, Record]]] = field(default_factory=dict)
    # The topic that came last: the one under test.
    newest: str = ""

    def topic(self, name, partitions):
        self.newest = name
        self.topics[name] = {partition: {} for partition in range(partitions)}

    def put(self, topic, partition, offset, record):
        there = self.topics[topic][partition]
        need(offset not in there, f"{topic}/{partition}: offset {offset} was acknowledged twice")
        there[offset] = record

    def counts(self):
        return {topic: sum(len(p) for p in parts.values()) for topic, parts in self.topics.items()}

    def complete(self, topic):
        """Offsets begin at 0 and have no gap: all that was appended is known."""
        for partition, records in self.topics[topic].items():
            need(sorted(records) == list(range(len(records))), f"{topic}/{partition}: the acknowledged offsets have gaps")

    def compare(self, topic, found, first=None):
        """`found`: partition -> list of (offset, Record) in the order read. `first`: where reading began."""
        wanted = self.topics[topic]
        for partition in wanted:
            start = (first or {}).get(partition, 0)
            compare(f"{topic}/{partition}", found.get(partition, []), wanted[partition], start)
        strange = set(found) - set(wanted)
        need(not strange, f"{topic}: partitions {strange} were never written")


def compare(where, found, wanted, start):
    """Each wanted offset from `start` once, in order, all fields equal."""
    offsets = [offset for offset in sorted(wanted) if offset >= start]
    for position, offset in enumerate(offsets):
        if position >= len(found):
            raise Difference(f"{where}: ends before offset {offset}; {len(offsets) - position} records are missing")
        read_offset, read = found[position]
        need(read_offset == offset, f"{where}: read offset {read_offset} where {offset} follows")
        if read != wanted[offset]:
            raise Difference(f"{where} at {offset}: {difference(read, wanted[offset])}")
    need(len(found) == len(offsets), f"{where}: {len(found) - len(offsets)} records more than were produced, first {short(found[len(offsets):][:1])}")


def difference(read, wanted):
    for name in ("timestamp", "key", "value", "headers"):
        a, b = getattr(read, name), getattr(wanted, name)
        if a != b:
            return f"{name} is {short(a)}, produced was {short(b)}"
    return "equal"
