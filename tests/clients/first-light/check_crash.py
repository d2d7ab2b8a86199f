"""kill -9 at random moments under load: what was acknowledged stays, at its offset, once.

Owns: the load, the kills, the comparison.
Not here: power loss (the log's own property tests tear unsynced writes).
"""

import os
import random
import threading
import time

import confluent_kafka
import kafka

import clients
from ledger import Ledger, Record
from report import need, same

KILLS = int(os.environ.get("FIRST_LIGHT_KILLS", "6"))
SEED = os.environ.get("FIRST_LIGHT_SEED", "1")
PARTITIONS = 3
# An outage must not use up a producer's patience: it is the broker's fault that is tested.
PATIENCE_MS = 300_000
PAUSE = 0.01
BURST = 8


class Load(threading.Thread):
    """One producer with a topic of its own. Values are `partition:number`, numbers rise by one."""

    def __init__(self, broker, name):
        super().__init__(name=name, daemon=True)
        self.broker = broker
        self.topic = f"crash-{name}"
        self.sent = dict.fromkeys(range(PARTITIONS), 0)
        self.acknowledged = []
        self.failures = []
        self.stop = threading.Event()
        self.error = None
        self.stamp = int(time.time() * 1000)

    def run(self):
        try:
            self.load()
        except Exception as error:  # noqa: BLE001 - told by the main thread
            self.error = error

    def next(self):
        partition = random.randrange(PARTITIONS)
        number = self.sent[partition]
        self.sent[partition] += 1
        value = f"{partition}:{number}:".encode() + b"x" * random.randrange(200)
        return partition, Record(self.stamp, None, value, ())

    def finish(self):
        self.stop.set()
        self.join(PATIENCE_MS / 1000)
        need(not self.is_alive(), f"{self.name} did not finish")
        if self.error is not None:
            raise self.error


class Confluent(Load):
    def __init__(self, broker, name, idempotent):
        super().__init__(broker, name)
        self.idempotent = idempotent

    def load(self):
        settings = clients.confluent_settings(
            self.broker, enable_idempotence=self.idempotent, acks="all", linger_ms=2, message_timeout_ms=PATIENCE_MS
        )
        settings |= {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "socket.timeout.ms": 10_000, "log_level": 0}
        if self.idempotent:
            # A gap becomes an error instead of passing unseen.
            settings["enable.gapless.guarantee"] = True
        producer = confluent_kafka.Producer(settings)
        while not self.stop.is_set():
            for _ in range(BURST):
                self.send(producer)
            producer.poll(PAUSE)
        left = producer.flush(PATIENCE_MS / 1000)
        need(left == 0, f"{self.name}: {left} records never came to an end")

    def send(self, producer):
        partition, record = self.next()

        def delivered(error, message):
            if error is None:
                self.acknowledged.append((message.partition(), message.offset(), record))
            else:
                self.failures.append(error)

        while True:
            try:
                producer.produce(self.topic, record.value, partition=partition, timestamp=record.timestamp, on_delivery=delivered)
                return
            except BufferError:
                producer.poll(0.1)


class KafkaPython(Load):
    def load(self):
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.broker.kafka,
            enable_idempotence=True,
            acks="all",
            linger_ms=2,
            delivery_timeout_ms=PATIENCE_MS,
            request_timeout_ms=10_000,
            reconnect_backoff_max_ms=200,
            max_block_ms=PATIENCE_MS,
        )
        while not self.stop.is_set():
            for _ in range(BURST):
                partition, record = self.next()
                future = producer.send(self.topic, record.value, partition=partition, timestamp_ms=record.timestamp)
                future.add_callback(lambda m, r=record: self.acknowledged.append((m.partition, m.offset, r)))
                future.add_errback(self.failures.append)
            time.sleep(PAUSE)
        producer.flush(PATIENCE_MS / 1000)
        producer.close(30)


def run(report, broker):
    """Returns the ledger of what is in the topics afterwards."""
    rng = random.Random(SEED)
    loads = [Confluent(broker, "idempotent", True), Confluent(broker, "plain", False), KafkaPython(broker, "kafka-python")]
    for load in loads:
        clients.create_confluent(broker, load.topic, PARTITIONS)
    for load in loads:
        load.start()
    committed = 0
    for number in range(KILLS):
        # Each kind of moment: while starting, under plain load, while tiering, while archiving.
        kind = ("load", "tiering", "archiving", "starting")[number % 4]
        with report.check(f"kill -9 number {number + 1} ({kind}), and it starts again"):
            committed = commit(broker, loads[0], committed)
            moment(rng, broker, kind)
            broker.kill()
            if kind == "starting":
                broker.spawn()
                time.sleep(rng.uniform(0, 0.4))
                broker.kill()
            broker.start()
            same("committed offset", committed_offset(broker, loads[0]), committed)
    with report.check("every producer comes to its end"):
        for load in loads:
            load.finish()
            need(not load.failures or load.name == "plain", f"{load.name}: {load.failures[:1]}")
            need(len(load.acknowledged) > 100, f"{load.name}: only {len(load.acknowledged)} records")
    ledger = Ledger()
    for load in loads:
        with report.check(f"{len(load.acknowledged)} records acknowledged to {load.name} are there once"):
            ledger.topics[load.topic] = check(broker, load)
    with report.check("nothing changes with another kill -9"):
        broker.kill()
        broker.start()
        for load in loads:
            ledger.compare(load.topic, clients.read_confluent(broker, load.topic, PARTITIONS))
    return ledger


def moment(rng, broker, kind):
    """Lets a random time pass, beside the work named by `kind`; that work may fail: it is killed."""
    verbs = {"tiering": ("tier", "flush", "--trim-local"), "archiving": ("archive", "flush")}
    time.sleep(rng.uniform(0.3, 1.5))
    if kind in verbs:
        worker = threading.Thread(target=broker.cli, args=verbs[kind], kwargs={"check": False}, daemon=True)
        worker.start()
        time.sleep(rng.uniform(0, 0.6))


def check(broker, load):
    """Compares what is in the topic with what was sent and acknowledged; returns it."""
    found = clients.read_confluent(broker, load.topic, PARTITIONS)
    seen = {}
    for partition, records in found.items():
        same(f"offsets of {load.topic}/{partition}", [o for o, _ in records], list(range(len(records))))
        seen |= {(partition, offset): record for offset, record in records}
        numbers = [tuple(map(int, r.value.split(b":")[:2])) for _, r in records]
        if load.name == "plain":
            need(len(set(numbers)) <= load.sent[partition], f"{load.topic}/{partition}: records nobody sent")
        else:
            same(f"numbers in {load.topic}/{partition}", numbers, [(partition, n) for n in range(load.sent[partition])])
    same("acknowledged offsets, each once", len({(p, o) for p, o, _ in load.acknowledged}), len(load.acknowledged))
    for partition, offset, record in load.acknowledged:
        same(f"{load.topic}/{partition} at {offset}", seen.get((partition, offset)), record)
    if load.name != "plain":
        same("records acknowledged", len(load.acknowledged), sum(load.sent.values()))
    return {partition: dict(records) for partition, records in found.items()}


def commit(broker, load, last):
    """Commits the newest acknowledged offset of partition 0 for a consumer group; returns it once that is acknowledged."""
    newest = max((offset + 1 for partition, offset, _ in load.acknowledged[-2000:] if partition == 0), default=last)
    newest = max(newest, last)
    consumer = confluent_kafka.Consumer(clients.confluent_settings(broker, group_id="crash", enable_auto_commit=False))
    try:
        position = confluent_kafka.TopicPartition(load.topic, 0, newest)
        answer = consumer.commit(offsets=[position], asynchronous=False)
        need(answer[0].error is None, f"commit: {answer[0].error}")
        return newest
    finally:
        consumer.close()


def committed_offset(broker, load):
    consumer = confluent_kafka.Consumer(clients.confluent_settings(broker, group_id="crash", enable_auto_commit=False))
    try:
        return consumer.committed([confluent_kafka.TopicPartition(load.topic, 0)], 60)[0].offset
    finally:
        consumer.close()
