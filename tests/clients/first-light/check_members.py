"""A broker loses its disk under load and is taken in again: nothing is lost, also when the others fall later.

Owns: the wipe, `tidelog cluster add`, the faults after it.
Not here: one step of a membership change (the cluster scenarios).
"""

import check_crash
import clients
from report import need, same
from rig import wait_for

PROGRESS = 200


def run(report, cluster, ledger):
    loads = [
        check_crash.Confluent(cluster, "idempotent", True),
        check_crash.Confluent(cluster, "plain", False),
        check_crash.KafkaPython(cluster, "kafka-python"),
    ]
    for load in loads:
        clients.create_confluent(cluster, load.topic, check_crash.PARTITIONS)
        load.start()
    progress(loads)
    lost = cluster.leader(loads[0].topic)
    others = [broker for broker in cluster.brokers if broker is not lost]
    with report.check("kill -9 of a leader that loses its disk too: it waits to be taken in, the others go on"):
        lost.kill()
        lost.wipe()
        lost.spawn()
        wait_for("it to be told as waiting", lambda: lost.id in waiting(cluster, others[0]), 60, 0.2)
        need(not lost.is_ready(), "it says that it is ready")
        # A member that may still run is not replaced.
        wait_for("the others to miss it", lambda: lost.id not in living(cluster, others[0]), 60, 0.2)
        progress(loads)
    with report.check("tidelog cluster add gives it all its replicas anew"):
        cluster.cli("cluster", "add", str(lost.id), "--timeout", "90s", by=others[1])
        wait_for("it to get ready", lost.ready, 60)
        same("replicas that it lacks", lacking(cluster, others[0], lost), [])
        progress(loads)
    for other in others:
        with report.check(f"with it, the cluster goes on while {'one' if other is others[0] else 'the other'} is dead"):
            other.kill()
            progress(loads)
            other.start()
    with report.check("every producer comes to its end"):
        for load in loads:
            load.finish()
            need(not load.failures, f"{load.name}: {load.failures[:1]}")
    for load in loads:
        with report.check(f"{len(load.acknowledged)} records acknowledged to {load.name} are there once"):
            ledger.topics[load.topic] = check_crash.check(cluster, load)


def progress(loads):
    """Every producer gets many more acknowledgements."""
    for load in loads:
        wanted = len(load.acknowledged) + PROGRESS
        enough = lambda load=load, wanted=wanted: load.error is not None or len(load.acknowledged) >= wanted  # noqa: E731
        wait_for(f"{PROGRESS} more acknowledgements to {load.name}", enough, 60)
        need(load.error is None, f"{load.name}: {load.error}")


def status(cluster, by):
    return cluster.cli_json("cluster", "status", by=by)


def living(cluster, by):
    return [broker["id"] for broker in status(cluster, by)["brokers"] if broker["live"]]


def waiting(cluster, by):
    return [broker["id"] for broker in status(cluster, by)["waiting"]]


def lacking(cluster, by, broker):
    return [group["group"] for group in status(cluster, by)["groups"] if broker.id not in group["replicas"]]
