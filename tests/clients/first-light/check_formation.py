"""Brokers that were set up wrongly found no cluster, say why in one line, and form one when that is put right.

Owns: seed lists that disagree, two brokers with one id, a directory of another cluster.
Not here: what happens to a cluster that works (`check_harm`).
"""

import time

from report import need
from rig import wait_for

# Long enough for several rounds of asking.
QUIET = 3


def run(report, cluster):
    """The cluster works afterwards. Returns the folder of its third broker as a cluster before it had left it."""
    third = cluster[3]
    with report.check("a seed list that disagrees: each says so, none founds"):
        third.seeds = [cluster[1].seed, third.seed]
        spawn(cluster)
        for broker in cluster.brokers:
            broker.wait_said("the seed lists disagree", cluster[2].peer)
        nobody_founds(cluster)
    with report.check("put right, they form a cluster"):
        third.stop()
        cluster.with_seeds(cluster.brokers)
        third.spawn()
        ready(cluster)
    with report.check("its third directory is kept for later, and all start anew"):
        cluster.stop()
        other = third.data.with_name("other-cluster")
        third.data.rename(other)
        for broker in cluster.brokers[:2]:
            broker.wipe()
    with report.check("two brokers with one node.id: it is said who and where, none founds"):
        third.id = 2
        spawn(cluster)
        wait_for("a line", lambda: any(broker.said(["two brokers have node.id 2"]) for broker in cluster.brokers), 60, 0.1)
        nobody_founds(cluster)
    with report.check("one gets another id and an empty directory: they form a cluster"):
        third.stop()
        third.wipe()
        third.id = 3
        third.spawn()
        ready(cluster)
    return other


def spawn(cluster):
    for broker in cluster.brokers:
        broker.spawn()


def ready(cluster):
    for broker in cluster.brokers:
        wait_for(f"broker {broker.id} to get ready", broker.ready, 60)


def nobody_founds(cluster):
    time.sleep(QUIET)
    for broker in cluster.brokers:
        need(broker.alive(), f"{broker.data.name} ended: {broker.last_words()}")
        need(not broker.said(["is a member of the cluster"]), f"{broker.data.name} is in a cluster")
