"""The stock clients, each behind the same few verbs.

Owns: how kcat, confluent-kafka and kafka-python create, produce and read.
Not here: what is expected.

Readers of one topic return partition -> list of (offset, Record), in the order read.
"""

import time

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.errors

from ledger import Record
from report import Difference, need
from rig import run

READ_TIMEOUT = 120
KINDS = ("confluent", "kafka-python", "kcat")


def confluent_settings(broker, **more):
    # That connections fail is no news while brokers are killed.
    level = 0 if broker.may_repeat else 3
    return {"bootstrap.servers": broker.kafka, "log_level": level, **{k.replace("_", "."): v for k, v in more.items()}}


# ---- topics


def patiently(broker, ask):
    """Calls that end at once when a leader moves or a broker falls, in every client: their callers ask again."""
    while True:
        try:
            return ask()
        except (confluent_kafka.KafkaException, kafka.errors.KafkaError) as error:
            passing = error.retriable if isinstance(error, kafka.errors.KafkaError) else error.args[0].code() in PASSING
            if not broker.may_repeat or not passing:
                raise
            time.sleep(0.1)


PASSING = (
    confluent_kafka.KafkaError._TRANSPORT,
    # What librdkafka makes of a leader that it cannot find, and of a request to a broker that metadata names no longer: it is fenced.
    confluent_kafka.KafkaError._UNKNOWN_PARTITION,
    confluent_kafka.KafkaError._DESTROY_BROKER,
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
    confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE,
    confluent_kafka.KafkaError.FENCED_LEADER_EPOCH,
    confluent_kafka.KafkaError.UNKNOWN_LEADER_EPOCH,
    confluent_kafka.KafkaError.NOT_COORDINATOR,
)


def create(broker, topic, ask):
    """Asked again because the answer was lost, the topic may be there already."""
    asked = []

    def once():
        asked.append(topic)
        try:
            ask(broker)
        except (confluent_kafka.KafkaException, kafka.errors.TopicAlreadyExistsError) as error:
            code = getattr(error.args[0], "code", lambda: confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS)()
            if len(asked) == 1 or code != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    patiently(broker, once)


def create_confluent(broker, topic, partitions):
    def ask(broker):
        admin = confluent_kafka.admin.AdminClient(confluent_settings(broker))
        new = confluent_kafka.admin.NewTopic(topic, num_partitions=partitions, replication_factor=broker.replicas)
        admin.create_topics([new], request_timeout=30)[topic].result(30)

    create(broker, topic, ask)


def create_kafka_python(broker, topic, partitions):
    def ask(broker):
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.kafka)
        try:
            admin.create_topics([kafka.admin.NewTopic(topic, partitions, broker.replicas)])
        finally:
            admin.close()

    create(broker, topic, ask)


def create_kcat(broker, topic, partitions):
    """kcat has no admin verbs: the topic comes into being by asking for it, with the default partitions."""
    del partitions
    run(["kcat", "-b", broker.kafka, "-L", "-t", topic, "-X", "allow.auto.create.topics=true"])


CREATE = {"confluent": create_confluent, "kafka-python": create_kafka_python, "kcat": create_kcat}


def topics_kafka_python(broker):
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.kafka)
    try:
        return set(admin.list_topics())
    finally:
        admin.close()


def partitions_of(broker, topic):
    """As every client sees them; none while a partition is between two leaders, or the asked broker has not heard of the topic."""
    admin = confluent_kafka.admin.AdminClient(confluent_settings(broker))
    seen = admin.list_topics(topic, timeout=30).topics[topic]
    settled = seen.error is None and all(partition.leader >= 0 for partition in seen.partitions.values())
    return len(seen.partitions) if settled else 0


# ---- producing


def produce_confluent(broker, topic, records, codec, idempotent, put):
    """`records`: list of (partition, Record). `put(partition, offset, record)` for each acknowledgement."""
    producer = confluent_kafka.Producer(
        confluent_settings(broker, compression_type=codec, enable_idempotence=idempotent, acks="all", linger_ms=5)
    )
    failures = []

    def delivered(record):
        def callback(error, message):
            if error is not None:
                failures.append(error)
            else:
                put(message.partition(), message.offset(), record)

        return callback

    for partition, record in records:
        while True:
            try:
                producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp=record.timestamp,
                    on_delivery=delivered(record),
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(READ_TIMEOUT)
    need(not failures, f"{len(failures)} records were refused: {failures[:1]}")
    need(left == 0, f"{left} records were not acknowledged within {READ_TIMEOUT} s")


def produce_kafka_python(broker, topic, records, codec, idempotent, put):
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.kafka,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        acks="all",
        linger_ms=5,
    )
    try:
        sent = [
            (
                record,
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp,
                ),
            )
            for partition, record in records
        ]
        producer.flush(READ_TIMEOUT)
        for record, future in sent:
            answer = future.get(READ_TIMEOUT)
            put(answer.partition, answer.offset, record)
    finally:
        producer.close(10)


def produce_kcat(broker, topic, data, *, delimiter=None, codec="none", idempotent=False, headers=(), partition=None):
    """Lines from standard input; kcat tells no offsets."""
    command = ["kcat", "-b", broker.kafka, "-P", "-t", topic, "-z", codec]
    command += ["-X", f"enable.idempotence={str(idempotent).lower()}", "-X", "acks=all"]
    command += ["-K", delimiter] if delimiter else []
    command += ["-p", str(partition)] if partition is not None else []
    for name, value in headers:
        command += ["-H", f"{name}={value}"]
    run(command, stdin=data)


# ---- reading


def read_confluent(broker, topic, partitions, first=None):
    """One topic, from `first[partition]`, or the beginning, to the end of each."""
    return read_many_confluent(broker, {topic: partitions}, first)[topic]


def read_many_confluent(broker, topics, first=None):
    """Topics (name -> partitions) with one consumer; name -> what was found."""
    consumer = confluent_kafka.Consumer(
        confluent_settings(
            broker, group_id="unused", enable_auto_commit=False, enable_partition_eof=True, auto_offset_reset="error"
        )
    )
    try:
        start = {
            (topic, p): (first or {}).get(p, confluent_kafka.OFFSET_BEGINNING) for topic, n in topics.items() for p in range(n)
        }
        consumer.assign([confluent_kafka.TopicPartition(topic, p, offset) for (topic, p), offset in start.items()])
        found = {topic: {p: [] for p in range(n)} for topic, n in topics.items()}
        open_ = set(start)
        end = time.monotonic() + READ_TIMEOUT
        while open_:
            need(time.monotonic() < end, f"no end of {sorted(open_)[:5]} after {READ_TIMEOUT} s; have {lengths(found)}")
            # Small bites: a bite waits for its last record or the time.
            for message in consumer.consume(500, 0.05):
                if message.error() is None:
                    found[message.topic()][message.partition()].append((message.offset(), from_confluent(message)))
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    open_.discard((message.topic(), message.partition()))
                else:
                    raise Difference(f"{message.topic()}: {message.error()}")
        return found
    finally:
        consumer.close()


def from_confluent(message):
    return Record(message.timestamp()[1], message.key(), message.value(), tuple(message.headers() or ()))


def read_kafka_python(broker, topic, partitions, first=None):
    return read_many_kafka_python(broker, {topic: partitions}, first)[topic]


def read_many_kafka_python(broker, topics, first=None):
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.kafka, enable_auto_commit=False, auto_offset_reset="none", group_id=None
    )
    try:
        all_ = [kafka.TopicPartition(topic, p) for topic, n in topics.items() for p in range(n)]
        consumer.assign(all_)
        ends = patiently(broker, lambda: ends_kafka_python(consumer, all_))
        start = {tp: (first or {}).get(tp.partition, 0) for tp in all_}
        for tp in all_:
            if start[tp] > 0:
                consumer.seek(tp, start[tp])
            else:
                consumer.seek_to_beginning(tp)
        found = {topic: {p: [] for p in range(n)} for topic, n in topics.items()}
        open_ = {tp for tp in all_ if start[tp] < ends[tp]}
        end = time.monotonic() + READ_TIMEOUT
        while open_:
            need(time.monotonic() < end, f"no end of {len(open_)} partitions after {READ_TIMEOUT} s; have {lengths(found)}")
            for tp, messages in patiently(broker, lambda: consumer.poll(timeout_ms=200, max_records=5000)).items():
                found[tp.topic][tp.partition].extend((m.offset, from_kafka_python(m)) for m in messages)
                if messages and messages[-1].offset + 1 >= ends[tp]:
                    open_.discard(tp)
        return found
    finally:
        consumer.close()


def ends_kafka_python(consumer, partitions):
    """It leaves partitions out that have no leader at the moment, and falls over that."""
    try:
        return consumer.end_offsets(partitions)
    except KeyError as error:
        raise kafka.errors.LeaderNotAvailableError(error) from None


def from_kafka_python(message):
    return Record(message.timestamp, message.key, message.value, tuple(message.headers))


def lengths(found):
    return {topic: sum(map(len, partitions.values())) for topic, partitions in found.items()}


# Lengths first, then the bytes: nothing in a key or value can be mistaken for a separator. Headers have
# no length: what ends them is in no header of ours.
KCAT_FORMAT = "%p %o %T %K %S\\n%k%s\\n%h\\x01;\\x02;\\x03\\n"
KCAT_END = b"\x01;\x02;\x03\n"


def read_kcat(broker, topic, offset="beginning", partition=None, group=None, count=None):
    """From `offset` (as kcat spells it) to the end. Headers come back as kcat's text."""
    command = ["kcat", "-b", broker.kafka, "-q", "-f", KCAT_FORMAT, "-X", "check.crcs=true"]
    if group:
        command += ["-X", "auto.offset.reset=earliest", "-G", group]
    else:
        command += ["-C", "-t", topic, "-o", str(offset)]
    command += ["-p", str(partition)] if partition is not None else []
    command += ["-c", str(count)] if count is not None else []
    command += ["-e"] if count is None else []
    # kcat takes a group's topics last.
    command += [topic] if group else []
    return parse_kcat(run(command, timeout=READ_TIMEOUT))


def parse_kcat(out):
    found = {}
    position = 0
    while position < len(out):
        line_end = out.index(b"\n", position)
        partition, offset, timestamp, key_length, length = map(int, out[position:line_end].split())
        at = line_end + 1
        key = None if key_length < 0 else out[at : at + key_length]
        at += max(key_length, 0)
        value = None if length < 0 else out[at : at + length]
        at += max(length, 0)
        need(out[at : at + 1] == b"\n", f"kcat's output is not as asked for at byte {at}")
        header_end = out.index(KCAT_END, at + 1)
        headers = out[at + 1 : header_end]
        found.setdefault(partition, []).append((offset, Record(timestamp, key, value, (("text", headers),))))
        position = header_end + len(KCAT_END)
    return found


def as_kcat_shows(record):
    """What `read_kcat` returns for this record: headers as `name=value,…`, null as NULL, cut at a zero byte."""
    shown = (b"NULL" if value is None else value.split(b"\0")[0] for _, value in record.headers)
    text = b",".join(name.encode() + b"=" + value for (name, _), value in zip(record.headers, shown, strict=True))
    return Record(record.timestamp, record.key, record.value, (("text", text),))
