"""A consumer group goes on where it was, also after its broker was started again.

Owns: one consumer group per client: read some, commit, leave; restart; read the rest.
Not here: rebalances among many members (later issues).
"""

import time

import confluent_kafka
import kafka

import clients
from report import Difference, need, same

TOPIC = "m-confluent-snappy-plain"


class Progress:
    """What each group read before the restart: (partition, offset) -> Record."""

    def __init__(self):
        self.seen = {client: {} for client in clients.KINDS}


def before(report, broker, ledger, progress):
    third = ledger.counts()[TOPIC] // 3
    for client, read in (("confluent", some_confluent), ("kafka-python", some_kafka_python), ("kcat", some_kcat)):
        with report.check(f"{client} reads a part in a consumer group and commits"):
            take(ledger, client, progress, read(broker, third))
            need(len(progress.seen[client]) >= third, f"only {len(progress.seen[client])} records")


def after(report, broker, ledger, progress):
    all_ = ledger.counts()[TOPIC]
    for client, read in (("confluent", some_confluent), ("kafka-python", some_kafka_python), ("kcat", some_kcat)):
        with report.check(f"{client}'s consumer group goes on after the restart"):
            committed = committed_offsets(broker, ledger, f"group-{client}")
            for partition in ledger.topics[TOPIC]:
                read_before = sorted(o for p, o in progress.seen[client] if p == partition)
                same(f"committed of partition {partition}", committed.get(partition, 0), len(read_before))
            take(ledger, client, progress, read(broker, all_ - len(progress.seen[client])))
            same("records read in all", len(progress.seen[client]), all_)


def take(ledger, client, progress, read):
    """Each record once over the life of the group, and equal to what was produced."""
    for partition, offset, record in read:
        need((partition, offset) not in progress.seen[client], f"{TOPIC}/{partition}: {offset} came twice")
        wanted = ledger.topics[TOPIC][partition][offset]
        if client == "kcat":
            wanted = clients.as_kcat_shows(wanted)
        same(f"{TOPIC}/{partition} at {offset}", record, wanted)
        progress.seen[client][partition, offset] = record


def committed_offsets(broker, ledger, group):
    consumer = confluent_kafka.Consumer(clients.confluent_settings(broker, group_id=group))
    try:
        asked = [confluent_kafka.TopicPartition(TOPIC, p) for p in ledger.topics[TOPIC]]
        found = clients.patiently(broker, lambda: consumer.committed(asked, 30))
        return {a.partition: a.offset for a in found if a.offset >= 0}
    finally:
        consumer.close()


def some_confluent(broker, count):
    consumer = confluent_kafka.Consumer(
        clients.confluent_settings(broker, group_id="group-confluent", enable_auto_commit=False, auto_offset_reset="earliest")
    )
    result = []
    try:
        consumer.subscribe([TOPIC])
        end = time.monotonic() + clients.READ_TIMEOUT
        while len(result) < count:
            need(time.monotonic() < end, f"{len(result)} of {count} records after {clients.READ_TIMEOUT} s")
            for message in consumer.consume(min(50, count - len(result)), 0.5):
                need(message.error() is None, f"{message.error()}")
                result.append((message.partition(), message.offset(), clients.from_confluent(message)))
        clients.patiently(broker, lambda: consumer.commit(offsets=positions(result), asynchronous=False))
    finally:
        consumer.close()
    return result


def positions(read):
    """The next offset of each partition that was read."""
    last = {}
    for partition, offset, _ in read:
        last[partition] = offset + 1
    return [confluent_kafka.TopicPartition(TOPIC, p, o) for p, o in last.items()]


def some_kafka_python(broker, count):
    consumer = kafka.KafkaConsumer(
        TOPIC,
        bootstrap_servers=broker.kafka,
        group_id="group-kafka-python",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=50,
    )
    result = []
    try:
        end = time.monotonic() + clients.READ_TIMEOUT
        while len(result) < count:
            need(time.monotonic() < end, f"{len(result)} of {count} records after {clients.READ_TIMEOUT} s")
            for tp, messages in clients.patiently(broker, lambda: consumer.poll(timeout_ms=500)).items():
                result.extend((tp.partition, m.offset, clients.from_kafka_python(m)) for m in messages)
        clients.patiently(broker, consumer.commit)
    finally:
        consumer.close(autocommit=False)
    return result


def some_kcat(broker, count):
    """Commits by itself as it ends."""
    while True:
        try:
            found = clients.read_kcat(broker, TOPIC, group="group-kcat", count=count)
            break
        except Difference as error:
            # Any error ends kcat, also one that librdkafka goes on after: the group's coordinator is moving.
            if not broker.may_repeat or "coordinator" not in str(error).lower():
                raise
    return [(partition, offset, record) for partition, read in found.items() for offset, record in read]
