"""Consumer groups on a topic of single copies: no broker holds all its partitions, and every coordinator commits all of them.

Owns: subscribe, read a part, commit, go on as another consumer; a commit past the end.
Not here: copies of everything everywhere (`check_groups`).
"""

import time

import confluent_kafka
import confluent_kafka.admin

import check_clients
import clients
from report import need, same

TOPIC = "single-copies"
PARTITIONS = 6
RECORDS = 120
# Enough names for every coordinator.
GROUPS = tuple(f"readers-of-single-copies-{number}" for number in range(8))


def run(report, cluster, ledger):
    with report.check("a topic of single copies is spread over the brokers"):
        admin = confluent_kafka.admin.AdminClient(clients.confluent_settings(cluster))
        new = confluent_kafka.admin.NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        admin.create_topics([new], request_timeout=30)[TOPIC].result(30)
        ledger.topic(TOPIC, PARTITIONS)
        made = check_clients.records(TOPIC, RECORDS, int(time.time() * 1000))
        batch = [(number % PARTITIONS, record) for number, (_, record) in enumerate(made)]
        clients.produce_confluent(cluster, TOPIC, batch, "lz4", True, lambda p, o, r: ledger.put(TOPIC, p, o, r))
        same("records acknowledged", ledger.counts()[TOPIC], len(batch))
        ledger.complete(TOPIC)
        seen = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions.values()
        same("copies", {len(partition.replicas) for partition in seen}, {1})
        need(len({partition.leader for partition in seen}) == len(cluster.brokers), "one broker holds more than its share")
    for group in GROUPS:
        with report.check(f"a second consumer of {group} goes on where the first one committed"):
            found = read(cluster, group, len(batch) // 2)
            found += read(cluster, group, len(batch) - len(found))
            by_partition = {partition: [] for partition in range(PARTITIONS)}
            for partition, offset, record in found:
                by_partition[partition].append((offset, record))
            ledger.compare(TOPIC, by_partition)
            past_the_end(cluster, group)


def consumer_of(cluster, group):
    settings = clients.confluent_settings(cluster, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest")
    return confluent_kafka.Consumer(settings)


def read(cluster, group, count):
    """So many records, committed."""
    consumer = consumer_of(cluster, group)
    result = []
    try:
        consumer.subscribe([TOPIC])
        end = time.monotonic() + clients.READ_TIMEOUT
        while len(result) < count:
            need(time.monotonic() < end, f"{len(result)} of {count} records after {clients.READ_TIMEOUT} s")
            for message in consumer.consume(min(20, count - len(result)), 0.5):
                need(message.error() is None, f"{message.error()}")
                result.append((message.partition(), message.offset(), clients.from_confluent(message)))
        positions = {partition: offset + 1 for partition, offset, _ in result}
        wanted = [confluent_kafka.TopicPartition(TOPIC, p, o) for p, o in positions.items()]
        for committed in consumer.commit(offsets=wanted, asynchronous=False):
            need(committed.error is None, f"{committed}: {committed.error}")
    finally:
        consumer.close()
    return result


def past_the_end(cluster, group):
    """Refused in every partition, and nothing of it is kept."""
    consumer = consumer_of(cluster, group)
    try:
        asked = [confluent_kafka.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        before = [(at.partition, at.offset) for at in consumer.committed(asked, 30)]
        past = [confluent_kafka.TopicPartition(TOPIC, partition, 1_000_000) for partition in range(PARTITIONS)]
        try:
            answers = consumer.commit(offsets=past, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            same("refused for", error.args[0].code(), confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE)
        else:
            codes = {at.error and at.error.code() for at in answers}
            same("refused for", codes, {confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE})
        same("committed", [(at.partition, at.offset) for at in consumer.committed(asked, 30)], before)
    finally:
        consumer.close()
