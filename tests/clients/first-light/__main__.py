"""First light: everything the first issue promises, done with stock clients against the real processes.

Run by `cargo xtask clients [NAME]…`. Suites: file, s3, crash-file, crash-s3, hostile, starts,
three, three-bad.
Environment: TIDELOG_BIN and MINIO_DEV_BIN (set by xtask), FIRST_LIGHT_SEED, FIRST_LIGHT_KILLS, FIRST_LIGHT_LINES.

Owns: the suites and the order in each; what is kept when one fails.
Not here: the checks.
"""

import sys
import traceback

import check_archive
import check_cli
import check_clients
import check_crash
import check_formation
import check_groups
import check_harm
import check_hostile
import check_lines
import check_members
import check_single
import check_starts
import check_tier
from cluster import Cluster, Killer
from ledger import Ledger
from report import Report, need, same
from rig import S3, Broker, Place


def whole(report, place, world, s3=None):
    """Clients, lines, groups, tiers, archive; the brokers stopped for the last part."""
    broker = world(Broker(place, s3=s3))
    with report.check("a broker starts on a clean folder"):
        broker.start()
    ledger, progress = Ledger(), check_groups.Progress()
    check_clients.run(report, broker, ledger)
    check_lines.produce(report, broker, ledger)
    check_cli.run(report, broker)
    check_groups.before(report, broker, ledger, progress)
    with report.check("SIGTERM stops it, and it starts again"):
        broker.stop()
        broker.start()
    check_groups.after(report, broker, ledger, progress)
    check_clients.read_all(report, broker, ledger, "after the restart", kcat_too=False)
    check_tier.before(report, broker, ledger)
    check_tier.flush(report, broker, ledger)
    again(report, broker, ledger, "from the store")
    with report.check("it starts again with everything in the store"):
        broker.stop()
        broker.start()
    check_clients.read_all(report, broker, ledger, "from the store after a restart", kcat_too=False)
    check_lines.read_again(report, broker, "from the store after a restart")
    tables = check_archive.flush(report, broker, ledger)
    check_archive.again(report, broker, ledger, tables)
    with report.check("every broker stops"):
        broker.stop()
    check_archive.read(report, ledger, tables, s3)
    no_complaints(report, broker)


def again(report, broker, ledger, why):
    check_clients.read_all(report, broker, ledger, why)
    check_clients.offsets(report, broker, ledger)
    check_clients.times(report, broker, ledger)
    check_lines.read_again(report, broker, why)


def three(report, place, world, s3=None):
    """What `whole` does with one broker, with three, while a leader is killed every 5 s."""
    cluster = world(Cluster(place, s3))
    with report.check("three brokers form a cluster"):
        cluster.start()
    ledger, progress = Ledger(), check_groups.Progress()
    with Killer(cluster, lambda: ledger.newest) as killer:
        check_clients.run(report, cluster, ledger)
        check_lines.produce(report, cluster, ledger)
        check_cli.run(report, cluster)
        check_groups.before(report, cluster, ledger, progress)
        check_groups.after(report, cluster, ledger, progress)
    with report.check(f"kills of each broker meanwhile: {killer.kills}"):
        need(sum(map(bool, killer.kills.values())) > 1, "always the same one")
    check_members.run(report, cluster, ledger)
    check_single.run(report, cluster, ledger)
    check_tier.flush(report, cluster, ledger)
    again(report, cluster, ledger, "from the store")
    with report.check("all are killed at once, and start again"):
        cluster.kill()
        cluster.start()
    check_clients.read_all(report, cluster, ledger, "after that", matching="", kcat_too=False)
    tables = check_archive.flush(report, cluster, ledger)
    check_archive.again(report, cluster, ledger, tables)
    with report.check("every broker stops"):
        cluster.stop()
    check_archive.read(report, ledger, tables, s3)
    no_complaints(report, cluster)


def three_bad(report, place, world, s3=None):
    cluster = world(Cluster(place, s3))
    other = check_formation.run(report, cluster)
    check_harm.run(report, place, world, cluster, other)
    with report.check("every broker stops"):
        cluster.stop()


def crash(report, place, world, s3=None):
    broker = world(Broker(place, s3=s3))
    broker.start()
    ledger = check_crash.run(report, broker)
    check_tier.flush(report, broker, ledger)
    check_clients.read_all(report, broker, ledger, "from the store", matching="crash-")
    tables = check_archive.flush(report, broker, ledger)
    with report.check("every broker stops"):
        broker.stop()
    check_archive.read(report, ledger, tables, s3)
    no_complaints(report, broker)


def no_complaints(report, broker):
    with report.check("no error and no panic is in the broker's log"):
        same("complaints", broker.complaints()[:3], [])


def on_s3(suite):
    def run(report, place, world):
        with report.check("minio-dev starts SeaweedFS, which does what a store must"):
            s3 = world(S3(place))
            s3.check()
        suite(report, place, world, s3)

    return run


def hostile(report, place, world):
    broker = world(Broker(place))
    broker.start()
    check_hostile.run(report, broker)
    with report.check("and it stops as it should"):
        broker.stop()
    no_complaints(report, broker)


def starts(report, place, world):
    broker = world(Broker(place))
    broker.start()
    check_starts.check(report, place, broker)
    broker.stop()
    check_starts.after_stop(report, place, broker)


SUITES = {
    "file": whole,
    "hostile": hostile,
    "starts": starts,
    "crash-file": crash,
    "s3": on_s3(whole),
    "crash-s3": on_s3(crash),
    "three": on_s3(three),
    "three-bad": on_s3(three_bad),
}


def run_suite(name):
    """True when every check passed. The folder with data and logs is kept when not."""
    report, place, started = Report(name), Place(name), []

    def world(thing):
        started.append(thing)
        return thing

    failure = None
    try:
        SUITES[name](report, place, world)
    except BaseException as error:  # noqa: BLE001 - also Ctrl-C must end the processes
        failure = error
    for thing in reversed(started):
        thing.stop() if isinstance(thing, S3) else thing.clean_up()
    if failure is None:
        place.remove()
        return report.passed, True
    print(f"{type(failure).__name__}: {failure}", flush=True)
    if not isinstance(failure, Exception):
        raise failure
    traceback.print_exception(failure)
    print(f"logs and data are kept in {place.path}", flush=True)
    return report.passed, False


def main(names):
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        print(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}", file=sys.stderr)
        return 2
    passed = 0
    for name in names or SUITES:
        count, good = run_suite(name)
        passed += count
        if not good:
            print(f"first-light: {passed} passed, 1 failed", flush=True)
            return 1
    print(f"first-light: {passed} passed, 0 failed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
