"""One broker with something wrong: it says what in one line, and the cluster goes on taking records.

Owns: what is done to one broker, the line that must follow.
Not here: what keeps a cluster from forming (`check_formation`).
"""

import contextlib
import json
import random
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from urllib.error import HTTPError

import check_crash
import check_lagging
import check_members
import clients
import wire
from cluster import Member
from report import need, same
from rig import free_port, run as run_program, wait_for

MIB = 1 << 20
# Uploads find out sooner than the look at the store every 30 s.
STORE = {"store", "offload"}


def run(report, place, world, cluster, other):
    """`other`: a directory of broker 3 from another cluster."""
    loads = [check_crash.Confluent(cluster, "idempotent", True), check_crash.KafkaPython(cluster, "kafka-python")]
    for load in loads:
        clients.create_confluent(cluster, load.topic, check_crash.PARTITIONS)
        load.start()
    check_members.progress(loads)
    same_id(report, place, world, cluster, loads)
    other_cluster(report, cluster, loads, other)
    peer_port(report, cluster, loads)
    controller(report, cluster, loads)
    check_lagging.run(report, cluster)
    clock(report, place, cluster, loads)
    disk(report, cluster, loads)
    store(report, cluster, loads)
    with report.check("every producer comes to its end"):
        for load in loads:
            load.finish()
            need(not load.failures, f"{load.name}: {load.failures[:1]}")
    for load in loads:
        with report.check(f"{len(load.acknowledged)} records acknowledged to {load.name} are there once"):
            check_crash.check(cluster, load)


def same_id(report, place, world, cluster, loads):
    with report.check("a second broker with the node.id of one that lives is told, and is not taken in"):
        twin = world(Member(place, 2, cluster.s3, name="twin"))
        twin.seeds = cluster[2].seeds
        twin.spawn()
        twin.wait_said("WARN", "two brokers have node.id 2", cluster[2].peer)
        refused = cluster.cli("cluster", "add", "2", check=False, by=cluster[1])
        need(refused.returncode == 1 and b"--force" in refused.stderr, f"{refused.returncode}: {refused.stderr!r}")
        check_members.progress(loads)
        twin.clean_up()
        wait_for("the one that lived to be ready", cluster[2].ready, 10)


def other_cluster(report, cluster, loads, other):
    with report.check("a broker whose directory is of another cluster is told, and harms nobody"):
        third = cluster[3]
        third.stop()
        mine = third.data
        third.data = other
        third.spawn()
        wait_for("a line", lambda: third.said(["is of cluster", str_id(cluster[1])]) or not third.alive(), 60, 0.1)
        need(third.said(["is of cluster", str_id(cluster[1])]), third.last_words())
        check_members.progress(loads)
        third.clean_up()
        third.data = mine
        third.start()


def str_id(broker):
    return broker.get_json("/api/v1/cluster")["cluster_id"]


def peer_port(report, cluster, loads):
    target = cluster[1]
    before = target.resident_bytes()
    rng = random.Random(1)
    garbage = [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(5000), *(rng.randbytes(rng.randrange(1, 2000)) for _ in range(100))]
    hello = wire.peer_hello("first-light")
    garbage += [hello[:end] for end in range(1, len(hello))]
    garbage += [hello[:at] + bytes([hello[at] ^ 1]) + hello[at + 1 :] for at in range(len(hello))]
    garbage += [wire.peer_hello("first-light", length=length) for length in (0, 10, 1024, 65535)]
    with report.check(f"the peer port: {len(garbage)} kinds of garbage are closed"):
        for data in garbage:
            poke(target, data)
    with report.check("the peer port: another cluster's name or id, and lanes that a stranger may not use, are refused"):
        for reason, data in (
            (3, wire.peer_hello("stranger")),
            (6, wire.peer_hello("first-light", cluster=b"x" * 16)),
            (7, wire.peer_hello("first-light", lane=1)),
        ):
            answer = poke(target, data)
            need(answer[:4] == b"TLPA" and answer[10] == reason, f"{answer!r}")
    with report.check("the peer port: frames with huge lengths are closed"):
        for length in (5 * MIB, 1 << 30, (1 << 32) - 1):
            answer = poke(target, hello + wire.peer_frame(length))
            need(answer[:4] == b"TLPA" and answer[10] == 0, f"{answer!r}")
        poke(target, hello + wire.peer_frame(0, header=bytes(70_000)))
    with report.check("the peer port: those that send slowly, or announce much and send nothing, take little and hinder nobody"):
        slow = [wire.Connection(target, address=target.peer) for _ in range(200)]
        for number, connection in enumerate(slow):
            connection.send(hello + wire.peer_frame(4 * MIB) if number % 2 else hello[: number % len(hello)])
        check_members.progress(loads)
        for connection in slow:
            connection.socket.close()
        grown = target.resident_bytes() - before
        need(grown < 200 * MIB, f"resident memory grew by {grown // MIB} MiB")
        wait_for("it to be ready", target.ready, 10)


def poke(target, data):
    """What it answers until it closes."""
    with wire.Connection(target, timeout=20, address=target.peer) as connection:
        connection.send(data)
        connection.no_more()
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.socket.recv(4096):
                answer += part
        return answer


def clock(report, place, cluster, loads):
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    need(library is not None, "libfaketime is missing: `cargo xtask setup`")
    third, now = cluster[3], place.path / "clock"
    now.write_text("+0\n")
    with report.check("a clock that jumps an hour, forward and back: the broker goes on, nothing is lost"):
        third.stop()
        third.more_environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(now),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        third.start()
        for jump in ("+3600", "-3600", "+0"):
            check_members.progress(loads)
            now.write_text(f"{jump}\n")
            check_members.progress(loads)
            wait_for(f"broker 3 to be ready after {jump}", third.ready, 10)
            same("brokers that Metadata tells", sorted(living(cluster)), [1, 2, 3])
        third.stop()
        third.more_environment = {}
        third.start()


def controller(report, cluster, loads):
    """Admin clients that begin before anybody has noticed must not wait for the dead."""
    with report.check("stock admin clients that begin when the metadata leader has died make their topics"):
        dead = cluster[cluster.cli_json("cluster", "status")["metadata_leader"]]
        dead.kill()
        failures = []

        def create(after):
            threading.Event().wait(after)
            admin = clients.confluent_kafka.admin.AdminClient(clients.confluent_settings(cluster))
            new = clients.confluent_kafka.admin.NewTopic(f"after-{after}", num_partitions=1, replication_factor=-1)
            try:
                admin.create_topics([new], request_timeout=25)[new.topic].result(25)
            except Exception as error:  # noqa: BLE001 - told below
                failures.append(f"{after} s after: {error}")

        threads = [threading.Thread(target=create, args=(after,)) for after in (0, 0.5, 1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        need(not failures, failures)
        dead.start()
        check_members.progress(loads)


def living(cluster):
    admin = clients.confluent_kafka.admin.AdminClient(clients.confluent_settings(cluster))
    return admin.list_topics(timeout=10).brokers


def disk(report, cluster, loads):
    """A small disk of its own for one broker; that takes rights to mount one."""
    third = cluster[3]
    with report.check("a broker without room up to its reserve says so, leads nothing, and the others take the records"):
        third.stop()
        third.reserve_bytes = 1 << 60
        third.spawn()
        third.wait_said("log.reserve-bytes")
        check_members.progress(loads)
        # It is preferred for some groups, and says that it should not lead: it gets none, or gives it away.
        wait_for("others to lead", lambda: third.id not in data_leaders(cluster), 30, 0.2)
        check_members.progress(loads)
        need(not third.is_ready(), "it says that it is ready")
        third.stop()
        third.reserve_bytes = 0
        third.start()
    with small_disk(third) as there:
        if there:
            full_disk(report, cluster, loads, third)
        else:
            print("        may not mount here: a disk that is really full is not tried", flush=True)
    third.start()


def full_disk(report, cluster, loads, third):
    with report.check("a broker whose disk is full ends or refuses, in one line, and the others go on"):
        third.start()
        fill = third.data / "fill"
        fill_up(fill)
        for _ in range(5):
            check_members.progress(loads)
        third.clean_up()
        need(third.said(["No space left"]), third.last_words())
        fill.unlink()
    with report.check("with room again it starts, and goes on"):
        third.start()
        check_members.progress(loads)
        third.stop()


def data_leaders(cluster):
    return {group["leader"] for group in check_members.status(cluster, cluster[1])["groups"] if group["group"] != 0}


@contextlib.contextmanager
def small_disk(broker):
    """The broker is stopped before and after; its files move to a small disk and back. Gives whether there is one."""
    broker.stop()
    away = broker.data.with_name("away")
    broker.data.rename(away)
    broker.data.mkdir()
    used = sum(file.stat().st_blocks * 512 for file in away.rglob("*") if file.is_file())
    size = used + 48 * MIB
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", broker.data], capture_output=True).returncode == 0
    try:
        shutil.copytree(away, broker.data, dirs_exist_ok=True)
        yield mounted
    finally:
        broker.clean_up()
        shutil.rmtree(away)
        shutil.copytree(broker.data, away)
        if mounted:
            run_program(["umount", broker.data])
        shutil.rmtree(broker.data, ignore_errors=True)
        away.rename(broker.data)


def fill_up(path):
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


class Line:
    """A way to the S3 server that can be cut: bytes go through while it is open."""

    def __init__(self, target):
        self.target = target
        self.address = f"127.0.0.1:{free_port()}"
        self.open = True
        self.sockets = []
        host, port = self.address.split(":")
        self.listener = socket.create_server((host, int(port)))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            if not self.open:
                near.close()
                continue
            host, port = self.target.split(":")
            far = socket.create_connection((host, int(port)))
            self.sockets += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self):
        self.open = False
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def store(report, cluster, loads):
    third = cluster[3]
    with report.check("the store out of reach of one broker: it warns and stays ready, the others go on"):
        line = Line(cluster.s3.state["endpoint"].removeprefix("http://"))
        third.stop()
        third.endpoint = f"http://{line.address}"
        third.start()
        line.cut()
        wait_for("a warning of it", lambda: STORE & warned(third), 60, 0.2)
        check_members.progress(loads)
        wait_for("it to be ready all the same", third.ready, 10)
        need(third.said(["WARN", "object store", line.address]), third.last_words())
        line.open = True
        wait_for("the end of the warning", lambda: not STORE & warned(third), 90, 0.2)
    third.stop()
    third.endpoint = None
    third.start()


def warned(broker):
    """Parts that it warns of; it may be not ready for a moment because a group has no leader."""
    try:
        answer = broker.get("/readyz")
    except HTTPError as error:
        answer = error.read()
    return {warning["part"] for warning in json.loads(answer)["warnings"]}
