"""Every stock client writes with every codec, and every one reads what the others wrote.

Owns: topics, produce and consume from the beginning, an offset, a time, in a consumer group.
Not here: tiers, crashes.
"""

import json
import random
import time
from dataclasses import replace

import confluent_kafka
import kafka

import clients
from ledger import Record, compare
from report import need, same
from rig import run as run_program
from rig import wait_for

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
RECORDS = 300
READERS = {"confluent": clients.read_confluent, "kafka-python": clients.read_kafka_python}
READERS_OF_MANY = {"confluent": clients.read_many_confluent, "kafka-python": clients.read_many_kafka_python}


def records(seed, count, now):
    """Keys, values and headers of all kinds; times that rise by uneven steps, per partition."""
    rng = random.Random(seed)
    result = []
    stamp = now - 3_600_000
    for number in range(count):
        stamp += rng.choice([0, 1, 7, 1000])
        key = rng.choice([None, b"", f"key-{rng.randrange(20)}".encode(), rng.randbytes(9)])
        value = rng.choice([None, b"", f"value {number}".encode() * rng.randrange(1, 40), rng.randbytes(rng.randrange(300))])
        headers = rng.choice(
            [
                (),
                (("event-id", f"{seed}-{number}".encode()),),
                (("twice", b"1"), ("twice", b"2"), ("schema-version", b"3")),
                (("null", None), ("empty", b""), ("not-text", bytes([0xFF, 0xFE, number % 256])), ("ключ", "знач".encode())),
            ]
        )
        result.append((number % PARTITIONS, Record(stamp, key, value, headers)))
    # One near the default limit of a batch.
    result.append((0, Record(stamp, b"large", rng.randbytes(900_000), ())))
    return result


def as_kafka_python_sends(batch):
    """kafka-python reads null header values, and records of neither key nor value, but refuses to send them."""

    def sent(record):
        key = b"" if record.key is None and record.value is None else record.key
        return replace(record, key=key, headers=tuple((name, value or b"") for name, value in record.headers))

    return [(partition, sent(record)) for partition, record in batch]


def run(report, broker, ledger):
    """Writes the topics m-… and reads them all; the ledger knows them afterwards."""
    topics(report, broker)
    for client, produce in (("confluent", clients.produce_confluent), ("kafka-python", clients.produce_kafka_python)):
        for codec in CODECS:
            for idempotent in (True, False):
                kind = "idempotent" if idempotent else "plain"
                topic = f"m-{client}-{codec}-{kind}"
                with report.check(f"{client} produces {codec}, {kind}"):
                    clients.CREATE[client](broker, topic, PARTITIONS)
                    ledger.topic(topic, PARTITIONS)
                    batch = records(topic, RECORDS, int(time.time() * 1000))
                    if client == "kafka-python":
                        batch = as_kafka_python_sends(batch)
                    produce(broker, topic, batch, codec, idempotent, lambda p, o, r, t=topic: ledger.put(t, p, o, r))
                    same("records acknowledged", ledger.counts()[topic], len(batch))
                    if broker.may_repeat and not idempotent:
                        repeats(broker, ledger, topic, batch)
                    ledger.complete(topic)
    for codec in CODECS:
        for idempotent in (True, False):
            kcat(report, broker, ledger, codec, idempotent)
    read_all(report, broker, ledger)
    offsets(report, broker, ledger)
    times(report, broker, ledger)


def topics(report, broker):
    for client in clients.KINDS:
        with report.check(f"{client} creates a topic"):
            topic = f"made-by-{client}"
            clients.CREATE[client](broker, topic, PARTITIONS)
            count = wait_for("the topic", lambda t=topic: clients.partitions_of(broker, t), 30)
            if client != "kcat":
                same("partitions", count, PARTITIONS)
    with report.check("every client lists all topics"):
        admin = confluent_kafka.admin.AdminClient(clients.confluent_settings(broker))
        listed = {"confluent": set(clients.patiently(broker, lambda: admin.list_topics(timeout=30)).topics)}
        listed["kafka-python"] = clients.patiently(broker, lambda: clients.topics_kafka_python(broker))
        listed["kcat"] = {topic["topic"] for topic in json.loads(run_program(["kcat", "-b", broker.kafka, "-L", "-J"]))["topics"]}
        for client, names in listed.items():
            need({f"made-by-{kind}" for kind in clients.KINDS} <= names, f"{client} lists {sorted(names)}")
    with report.check("a topic that exists, and a bad name, are refused"):
        codes = confluent_kafka.KafkaError
        for topic, wanted in (("made-by-confluent", codes.TOPIC_ALREADY_EXISTS), ("no/slash", codes.TOPIC_EXCEPTION)):
            refused = None
            try:
                clients.create_confluent(broker, topic, 1)
            except confluent_kafka.KafkaException as error:
                refused = error.args[0]
            need(refused is not None and refused.code() == wanted, f"{topic}: {refused}, wanted {wanted}")


def repeats(broker, ledger, topic, batch):
    """Without idempotence a record whose answer was lost is in the topic more than once: the ledger takes the repeats.
    Nothing else may be there."""
    sent = {(partition, record) for partition, record in batch}
    for partition, read in clients.read_confluent(broker, topic, PARTITIONS).items():
        for offset, record in read:
            need((partition, record) in sent, f"{topic}/{partition} at {offset}: nobody sent this")
            ledger.topics[topic][partition].setdefault(offset, record)


def kcat(report, broker, ledger, codec, idempotent):
    """kcat tells no offsets: what it wrote is read once by another client, compared with what went in
    line by line, and is in the ledger from then on."""
    topic = f"m-kcat-{codec}-{'idempotent' if idempotent else 'plain'}"
    with report.check(f"kcat produces {codec}, {'idempotent' if idempotent else 'plain'}"):
        clients.create_confluent(broker, topic, PARTITIONS)
        ledger.topic(topic, PARTITIONS)
        headers = (("event-id", "a-1"), ("event-id", "a-2"))
        lines = [(f"k{number % 17}".encode(), f"{topic} line {number}".encode()) for number in range(RECORDS)]
        for partition in range(PARTITIONS):
            mine = lines[partition::PARTITIONS]
            data = b"".join(key + b"\x01" + value + b"\n" for key, value in mine)
            clients.produce_kcat(
                broker, topic, data, delimiter="\\x01", codec=codec, idempotent=idempotent, headers=headers, partition=partition
            )
        found = clients.read_confluent(broker, topic, PARTITIONS)
        for partition in range(PARTITIONS):
            wanted, read = lines[partition::PARTITIONS], [(r.key, r.value) for _, r in found[partition]]
            if broker.may_repeat and not idempotent:
                wanted, read = sorted(wanted), sorted(set(read))
            same("keys and values", read, wanted)
            for offset, record in found[partition]:
                same("headers", record.headers, tuple((n, v.encode()) for n, v in headers))
                ledger.put(topic, partition, offset, record)
        ledger.complete(topic)


def read_all(report, broker, ledger, why="from the beginning", matching="m-", kcat_too=True):
    """Every topic of the ledger by every client. kcat takes one topic a run, which costs time."""
    mine = {topic: len(partitions) for topic, partitions in ledger.topics.items() if topic.startswith(matching)}
    # While leaders fall, reading takes its time; all of it is read again afterwards.
    some = dict(list(mine.items())[:: 4 if broker.may_repeat else 1])
    for client, read in READERS_OF_MANY.items():
        asked = mine if client == "confluent" else some
        with report.check(f"{client} reads {len(asked)} topics {why}"):
            for topic, found in read(broker, asked).items():
                ledger.compare(topic, found)
    if kcat_too:
        with report.check(f"kcat reads {len(some)} topics {why}"):
            for topic in some:
                compare_kcat(ledger, topic, clients.read_kcat(broker, topic))


def compare_kcat(ledger, topic, found, first=None):
    for partition, wanted in ledger.topics[topic].items():
        shown = {offset: clients.as_kcat_shows(record) for offset, record in wanted.items()}
        compare(f"{topic}/{partition} by kcat", found.get(partition, []), shown, (first or {}).get(partition, 0))


def offsets(report, broker, ledger):
    """Offsets in the middle of batches, the last one, and the end."""
    topic = "m-confluent-zstd-idempotent"
    for client, read in READERS.items():
        with report.check(f"{client} reads from an offset"):
            for offset in (1, 37, 99):
                first = {partition: offset for partition in range(PARTITIONS)}
                ledger.compare(topic, read(broker, topic, PARTITIONS, first), first)
    with report.check("kcat reads from an offset"):
        for offset in (1, 37, 99):
            found = clients.read_kcat(broker, topic, offset=offset, partition=1)
            shown = {o: clients.as_kcat_shows(r) for o, r in ledger.topics[topic][1].items()}
            compare(f"{topic}/1 by kcat", found.get(1, []), shown, offset)
    with report.check("an offset beyond the end is told as out of range"):
        out_of_range(broker, topic)


def out_of_range(broker, topic):
    consumer = confluent_kafka.Consumer(
        clients.confluent_settings(broker, group_id="unused", enable_auto_commit=False, auto_offset_reset="error")
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 1_000_000)])
        message = wait_for("an answer", lambda: consumer.poll(0.5), 30)
        need(message.error() is not None, f"a record came back: {message.offset()}")
        wanted = (confluent_kafka.KafkaError._AUTO_OFFSET_RESET, confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE)
        need(message.error().code() in wanted, f"{message.error()}")
    finally:
        consumer.close()


def times(report, broker, ledger):
    """Offset for a time: the first record at or after it, also inside a batch; none past the end."""
    for topic in ("m-confluent-lz4-plain", "m-kafka-python-gzip-idempotent"):
        wanted = {stamp: first_at(ledger, topic, stamp) for stamp in interesting(ledger, topic)}
        with report.check(f"confluent finds offsets by time in {topic}"):
            found = clients.patiently(broker, lambda: by_time_confluent(broker, topic, list(wanted)))
            same_by_time(found, wanted)
        with report.check(f"kafka-python finds offsets by time in {topic}"):
            found = clients.patiently(broker, lambda: by_time_kafka_python(broker, topic, wanted))
            same_by_time(found, wanted)
        with report.check(f"kcat reads from a time in {topic}"):
            stamp = sorted(wanted)[len(wanted) // 2]
            found = clients.read_kcat(broker, topic, offset=f"s@{stamp}")
            compare_kcat(ledger, topic, found, wanted[stamp])


def interesting(ledger, topic):
    stamps = sorted({r.timestamp for records in ledger.topics[topic].values() for r in records.values()})
    picked = stamps[:3] + stamps[3 : len(stamps) : max(1, len(stamps) // 20)] + stamps[-2:]
    return sorted({stamp + delta for stamp in picked for delta in (-1, 0, 1)})


def first_at(ledger, topic, stamp):
    """Per partition the first offset whose time is at or after the stamp; None if there is none."""
    return {
        partition: next((offset for offset in sorted(records) if records[offset].timestamp >= stamp), None)
        for partition, records in ledger.topics[topic].items()
    }


def same_by_time(found, wanted):
    for stamp, offsets_ in wanted.items():
        same(f"offsets at time {stamp}", found[stamp], offsets_)


def by_time_confluent(broker, topic, stamps):
    consumer = confluent_kafka.Consumer(clients.confluent_settings(broker, group_id="unused"))
    try:
        result = {}
        ends = {p: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, p), 30)[1] for p in range(PARTITIONS)}
        for stamp in stamps:
            asked = [confluent_kafka.TopicPartition(topic, p, stamp) for p in range(PARTITIONS)]
            answers = consumer.offsets_for_times(asked, 30)
            # librdkafka says the end where the broker said none.
            result[stamp] = {a.partition: a.offset if 0 <= a.offset < ends[a.partition] else None for a in answers}
        return result
    finally:
        consumer.close()


def by_time_kafka_python(broker, topic, wanted):
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.kafka, group_id=None)
    try:
        result = {}
        for stamp, offsets_ in wanted.items():
            asked = {kafka.TopicPartition(topic, p): stamp for p in range(PARTITIONS)}
            answers = consumer.offsets_for_times(asked)
            lost = any(a is None and offsets_[tp.partition] is not None for tp, a in answers.items())
            if lost and broker.may_repeat:
                # What it makes of a partition that has no leader at the moment.
                raise kafka.errors.LeaderNotAvailableError
            result[stamp] = {tp.partition: None if a is None else a.offset for tp, a in answers.items()}
        return result
    finally:
        consumer.close()
