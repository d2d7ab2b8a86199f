"""A broker that stood still while topics went and came elsewhere is asked for them the moment it goes on.

Owns: the requests, byte by byte, so that they go to that broker and wait for it.
Not here: what stock clients do with the answers (`check_clients`).
"""

import signal
import struct

import wire
from report import need, same
from rig import wait_for

ROUNDS = 3
TIMEOUT_MS = 30_000
UNKNOWN, EXISTS = 3, 36


def run(report, cluster):
    with report.check("a broker that did not hear of a deletion, or a creation, waits until it has before it answers"):
        for round_ in range(ROUNDS):
            # Without the leader of metadata nothing changes until another leads.
            leader = cluster.cli_json("cluster", "status")["metadata_leader"]
            followers = [broker for broker in cluster.brokers if broker.id != leader]
            for broker, other in zip(followers, reversed(followers)):
                deleted(cluster, broker, other, f"lagging-deleted-{round_}-{broker.id}")
                created(cluster, broker, other, f"lagging-created-{round_}-{broker.id}")
    with report.check("a topic is deleted, and said to be, when the leader of metadata stands still"):
        leaderless(cluster, "deleted-without-leader")


def leaderless(cluster, name):
    """What became of the deletion that was sent to it is not known: it is asked for again, of the next one."""
    leader = cluster[cluster.cli_json("cluster", "status")["metadata_leader"]]
    other = next(broker for broker in cluster.brokers if broker.id != leader.id)
    prepare(cluster, other, name)
    leader.process.send_signal(signal.SIGSTOP)
    try:
        answer = ask(other, deletion(name))
    finally:
        leader.process.send_signal(signal.SIGCONT)
    same(f"{name}: deleted by broker {other.id}", code(answer), 0)
    settled(cluster, name, False)


def deleted(cluster, broker, other, name):
    """The name has another topic meanwhile: the deletion is of that one, and does not say that there is none."""
    prepare(cluster, other, name)
    with still(broker, deletion(name)) as answer:
        surely(f"delete {name}", other, deletion(name), UNKNOWN)
        surely(f"create {name} again", other, creation(name), EXISTS)
    same(f"{name}: deleted by broker {broker.id}", code(answer.bytes), 0)
    settled(cluster, name, False)


def created(cluster, broker, other, name):
    """The topic of that name is gone meanwhile: it is created."""
    prepare(cluster, other, name)
    with still(broker, creation(name)) as answer:
        surely(f"delete {name}", other, deletion(name), UNKNOWN)
    same(f"{name}: created by broker {broker.id}", code(answer.bytes), 0)
    settled(cluster, name, True)


def prepare(cluster, other, name):
    surely(f"create {name}", other, creation(name), EXISTS)
    settled(cluster, name, True)


class still:
    """The broker stands still in the block; then it goes on, and answers the request that was sent meanwhile."""

    def __init__(self, broker, request):
        self.broker, self.request, self.bytes = broker, request, None

    def __enter__(self):
        self.connection = wire.Connection(self.broker, timeout=60)
        self.broker.process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, kind, *_):
        with self.connection:
            if kind is None:
                self.connection.send(self.request)
            self.broker.process.send_signal(signal.SIGCONT)
            if kind is None:
                self.bytes = self.connection.answer()


def creation(name):
    """CreateTopics version 2, one partition."""
    body = struct.pack(">i", 1) + wire.string(name) + struct.pack(">ihiii", 1, -1, 0, 0, TIMEOUT_MS) + b"\0"
    return wire.framed(wire.request(19, 2, body))


def deletion(name):
    """DeleteTopics version 1."""
    body = struct.pack(">i", 1) + wire.string(name) + struct.pack(">i", TIMEOUT_MS)
    return wire.framed(wire.request(20, 1, body))


def ask(broker, request):
    with wire.Connection(broker, timeout=60) as connection:
        connection.send(request)
        return connection.answer()


def surely(what, broker, request, done_before):
    """Until it is done, perhaps by a try whose end is not known: the leader of metadata may be another one by now."""
    wait_for(what, lambda: code(ask(broker, request)) in (0, done_before), 60, 0.1)


def code(answer):
    """Of the one topic: correlation, throttle time, count, name, error."""
    need(answer is not None, "closed without an answer")
    (length,) = struct.unpack(">h", answer[12:14])
    return struct.unpack(">h", answer[14 + length : 16 + length])[0]


def settled(cluster, name, there):
    for broker in cluster.brokers:
        told = lambda broker=broker: knows(broker, name) == there  # noqa: E731
        wait_for(f"broker {broker.id} to tell that {name} is {'there' if there else 'gone'}", told, 30, 0.05)


def knows(broker, name):
    """Metadata version 4 without creation: whether it tells the topic."""
    body = struct.pack(">i", 1) + wire.string(name) + b"\0"
    answer = ask(broker, wire.framed(wire.request(3, 4, body)))
    need(answer is not None, "closed without an answer")
    at = answer.index(wire.string(name))
    return struct.unpack(">h", answer[at - 2 : at])[0] == 0
