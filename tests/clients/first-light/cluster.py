"""Three `tidelog broker --config` processes that form one cluster, used by the checks as if they were one broker.

Owns: their configuration, the thread that kills leaders, which broker the command line asks.
Not here: one process (`rig`), what is checked.
"""

import itertools
import json
import random
import shutil
import threading
import time
import tomllib

import confluent_kafka
import confluent_kafka.admin

import clients
from report import Difference, need
from rig import START_TIMEOUT, Broker, free_port, program, run, wait_for

KILL_EVERY = 5.0
# Small files and cuts: a load of seconds fills, tiers and trims; nothing depends on how full the machine's disk is.
SMALL = """[log]
file-bytes = 8388608
reserve-bytes = {reserve_bytes}
[tier]
cut-bytes = 262144
cut-interval-ms = 2000
local-bytes = 0
"""


class Member(Broker):
    """One broker with a configuration file; a restart keeps folder and ports."""

    def __init__(self, place, number, s3=None, name=None):
        super().__init__(place, name or f"broker-{number}", s3=s3)
        self.id = number
        self.peer = f"127.0.0.1:{free_port()}"
        self.config = place.path / f"{self.data.name}.toml"
        self.store = f"file://{place.path}/store"
        self.cluster_name = "first-light"
        self.seeds = []
        self.reserve_bytes = 0
        # Of the S3 server, when it is not the server's own.
        self.endpoint = None

    @property
    def seed(self):
        return f"{self.id}@{self.peer}"

    def text(self):
        store = f'url = "{self.store}"\n'
        if self.s3:
            endpoint = self.endpoint or self.s3.state["endpoint"]
            store = f'url = "{self.s3.url}"\nendpoint = "{endpoint}"\npath-style = true\n'
        return (
            f'[node]\nid = {self.id}\nzone = "zone-{self.id}"\ndata-dir = "{self.data}"\n'
            f'[kafka]\nlisten = "{self.kafka}"\n[peer]\nlisten = "{self.peer}"\n[admin]\nlisten = "{self.admin}"\n'
            f'[cluster]\nname = "{self.cluster_name}"\nseeds = {json.dumps(self.seeds)}\n[store]\n{store}'
            + SMALL.format(reserve_bytes=self.reserve_bytes)
        )

    def command(self):
        return [program("TIDELOG_BIN"), "broker", "--config", str(self.config), *self.flags]

    def spawn(self):
        text = self.text()
        tomllib.loads(text)
        self.config.write_text(text)
        super().spawn()

    def is_ready(self):
        """Also of one that does not run, or ends meanwhile."""
        try:
            return self.alive() and self.ready()
        except (Difference, AttributeError):
            return False

    def wipe(self):
        """Its disk is lost. It must not run."""
        shutil.rmtree(self.data)

    def said(self, words):
        """Whether one line of its log since the last start has all the words."""
        lines = self.log.read_text(errors="replace").rsplit("--- start", 1)[-1].splitlines()[1:]
        return any(all(word in line for word in words) for line in lines)

    def wait_said(self, *words, timeout=START_TIMEOUT):
        wait_for(f"a line of {self.data.name} with {words}", lambda: self.said(words), timeout, 0.1)


class Cluster:
    """What the checks take for a broker: bootstrap addresses of all, the command line on one after the other."""

    # As many copies as the cluster makes by itself.
    replicas = -1

    def __init__(self, place, s3=None, count=3):
        self.s3 = s3
        self.brokers = [Member(place, number, s3) for number in range(1, count + 1)]
        self.with_seeds(self.brokers)
        self.turn = itertools.count()
        # While leaders are killed, a producer that is not idempotent may write a record twice.
        self.may_repeat = False

    def with_seeds(self, brokers):
        for broker in brokers:
            broker.seeds = [other.seed for other in brokers]

    def __getitem__(self, number):
        return next(broker for broker in self.brokers if broker.id == number)

    @property
    def kafka(self):
        return ",".join(broker.kafka for broker in self.brokers)

    def start(self):
        for broker in self.brokers:
            broker.spawn()
        for broker in self.brokers:
            wait_for(f"broker {broker.id} to get ready", broker.ready, START_TIMEOUT)

    def stop(self):
        for broker in self.brokers:
            if broker.alive():
                broker.stop()

    def kill(self):
        for broker in self.brokers:
            broker.clean_up()

    clean_up = kill

    def next(self):
        """One that is ready, each time another."""

        def one():
            for _ in self.brokers:
                broker = self.brokers[next(self.turn) % len(self.brokers)]
                if broker.is_ready():
                    return broker
            return None

        return wait_for("a broker that is ready", one, START_TIMEOUT)

    def cli(self, *words, check=True, stdin=None, by=None):
        """Kafka verbs through all bootstrap addresses, admin verbs through one broker."""
        by = by or self.next()
        command = [program("TIDELOG_BIN"), *words, "--bootstrap", self.kafka, "--admin-url", by.url]
        return run(command, check=check, stdin=stdin, environment=by.environment())

    def cli_json(self, *words, by=None):
        return json.loads(self.cli(*words, "--output", "json", by=by))

    def tier_status(self):
        """Of each partition what its leader says: the others' copies are trimmed by themselves, later."""
        all_ = [(broker, self.cli_json("tier", "status", by=broker)["partitions"]) for broker in self.brokers]
        return [row for broker, rows in all_ for row in rows if row["leader"] == broker.id]

    def get(self, path, timeout=30):
        while True:
            try:
                return self.next().get(path, timeout)
            except OSError:
                # It was killed, or lost a leader, after it had said that it is ready.
                if not self.may_repeat:
                    raise

    def get_json(self, path):
        return json.loads(self.get(path))

    def complaints(self):
        return [f"broker {broker.id}: {line}" for broker in self.brokers for line in broker.complaints()]

    def leader(self, topic, partition=0):
        """The broker that Metadata names, or None."""
        admin = confluent_kafka.admin.AdminClient(clients.confluent_settings(self))
        try:
            seen = admin.list_topics(topic, timeout=5).topics[topic].partitions.get(partition)
        except confluent_kafka.KafkaException:
            return None
        return self[seen.leader] if seen is not None and seen.leader > 0 else None


class Killer(threading.Thread):
    """kill -9 of the broker that leads a partition of `topic()`, every 5 s; it is started again at once."""

    def __init__(self, cluster, topic):
        super().__init__(name="killer", daemon=True)
        self.cluster = cluster
        self.topic = topic
        self.kills = {broker.id: 0 for broker in cluster.brokers}
        self.stop = threading.Event()
        self.error = None

    def __enter__(self):
        self.cluster.may_repeat = True
        self.start()
        return self

    def __exit__(self, kind, error, trace):
        self.stop.set()
        self.join(2 * START_TIMEOUT)
        self.cluster.may_repeat = False
        if kind is None:
            need(not self.is_alive(), "the killer did not end")
            need(self.error is None, f"after {self.kills} kills: {self.error}")

    def run(self):
        try:
            begun = time.monotonic()
            # A broker that is slow to come back delays the next kill: without a majority nothing could go on.
            while not self.stop.wait(max(0.5, begun + KILL_EVERY - time.monotonic())):
                begun = time.monotonic()
                self.kill_one()
        except Exception as error:  # noqa: BLE001 - told by the main thread
            self.error = error

    def kill_one(self):
        # Partition 0, 1, 2, 0 …: each is led by another broker most of the time.
        partition = sum(self.kills.values()) % 3
        victim = self.cluster.leader(self.topic(), partition) or random.choice(self.cluster.brokers)
        victim.kill()
        victim.start()
        self.kills[victim.id] += 1
