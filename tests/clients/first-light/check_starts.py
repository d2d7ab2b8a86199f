"""What stops a broker from starting is told in one clear line that says what to do.

Owns: ports in use, foreign data folders, an unreachable store, wrong usage.
Not here: a full disk (the log's own tests).
"""

import subprocess

from report import need, same
from rig import Broker, Place, free_port, program, run, wait_for

REFUSAL_TIMEOUT = 90


def check(report, place: Place, broker):
    """`broker` runs; the others are started beside it."""
    with report.check("a port in use is named"):
        other = Broker(place, "port-in-use")
        other.kafka = broker.kafka
        refused(other, broker.kafka.rsplit(":", 1)[1])
    with report.check("the data folder of a running broker is refused"):
        other = Broker(place, "same-folder")
        other.data = broker.data
        refused(other, str(broker.data))
    with report.check("a store that is not there is named with its endpoint"):
        endpoint = f"http://127.0.0.1:{free_port()}"
        other = Broker(place, "no-store")
        other.flags = ["--store", "s3://nobody/here", "--set", f"store.endpoint={endpoint}", "--set", "store.path-style=true"]
        # With credentials, or it would look for some on the network.
        other.more_environment = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nobody", "AWS_REGION": "us-east-1"}
        told(other, endpoint)
    with report.check("wrong usage exits with 2"):
        for words in (["dev", "--no-such-flag"], ["nonsense"], ["dev", "--set", "no.such=key"], ["dev", "--set", "novalue"]):
            command = [program("TIDELOG_BIN"), *words, *(["--data-dir", str(place.path / "usage")] if words[0] == "dev" else [])]
            same(f"exit code of {words}", run(command, check=False).returncode, 2)


def after_stop(report, place: Place, broker):
    """With `broker` stopped: its folder under another node id."""
    with report.check("the data folder of another node is refused"):
        other = Broker(place, "other-node", flags=["--set", "node.id=2"])
        other.data = broker.data
        refused(other, str(broker.data))
    with report.check("a broker that is given its own folder back starts"):
        broker.start()
        broker.stop()


def refused(other, named):
    """It ends by itself, not with 0, and its last words name the cause; no panic."""
    other.spawn()
    try:
        code = other.process.wait(REFUSAL_TIMEOUT)
    except subprocess.TimeoutExpired:
        other.kill()
        need(False, f"it did not end within {REFUSAL_TIMEOUT} s: {other.last_words()}")
    need(code != 0, "it ended with 0")
    said = other.log.read_text().splitlines()
    need(not any("panicked" in line for line in said), f"it panicked: {said[-3:]}")
    need(any(named in line for line in said[1:]), f"nobody said {named}: {said[-3:]}")


def told(other, named):
    """It says what it cannot reach, whether it ends or waits."""
    other.spawn()
    try:
        wait_for(f"a line with {named}", lambda: named in "".join(other.log.read_text().splitlines()[1:]), REFUSAL_TIMEOUT)
        code = other.process.poll()
        need(code != 0, "it ended with 0")
    finally:
        other.clean_up()
