"""The product's own command line, as scripts use it.

Owns: topics, produce and consume by `tidelog`, its JSON, its exit codes.
Not here: tier, archive (`check_tier`, `check_archive`), bench.
"""

import json

from report import need, same


def run(report, broker):
    with report.check("tidelog topic create, list, describe, delete"):
        broker.cli("topic", "create", "cli", "--partitions", "2", "--config", "retention.ms=3600000")
        listed = json.dumps(broker.cli_json("topic", "list"))
        need('"cli"' in listed, f"cli is not in {listed[:300]}")
        described = json.dumps(broker.cli_json("topic", "describe", "cli"))
        need("3600000" in described, f"the config is not in {described[:300]}")
        need(b"cli" in broker.cli("topic", "list"), "no table")
    with report.check("tidelog produce and consume"):
        lines = [f"blk_{n % 7} line {n}" for n in range(500)]
        broker.cli("produce", "cli", "--key-regex", r"(blk_\d+)", "--codec", "zstd", stdin="\n".join(lines).encode() + b"\n")
        out = broker.cli("consume", "cli", "--from", "earliest", "--until-end").decode().splitlines()
        same("lines", sorted(out), sorted(lines))
        for key in range(7):
            mine = f"blk_{key} "
            same("order", [x for x in out if x.startswith(mine)], [x for x in lines if x.startswith(mine)])
        two = broker.cli("consume", "cli", "--count", "2").decode().splitlines()
        same("lines with --count 2", len(two), 2)
        shown = broker.cli("consume", "cli", "--from", "earliest", "--until-end", "--format", "json").splitlines()
        need(all(isinstance(json.loads(line), dict) for line in shown), "not one JSON object per line")
        same("objects", len(shown), len(lines))
    with report.check("tidelog consume resumes in a consumer group"):
        first = broker.cli("consume", "cli", "--group", "cli-group", "--from", "earliest", "--count", "200").decode().splitlines()
        rest = broker.cli("consume", "cli", "--group", "cli-group", "--from", "earliest", "--until-end").decode().splitlines()
        same("lines of both", sorted(first + rest), sorted(lines))
    with report.check("tidelog exit codes: 1 failed, 2 wrong usage"):
        same("unknown topic", broker.cli("topic", "describe", "nobody", check=False).returncode, 1)
        same("exists", broker.cli("topic", "create", "cli", check=False).returncode, 1)
        same("usage", broker.cli("consume", "cli", "--from", "yesterday", check=False).returncode, 2)
    with report.check("tidelog topic delete"):
        broker.cli("topic", "delete", "cli")
        need('"cli"' not in json.dumps(broker.cli_json("topic", "list")), "it is still listed")
    with report.check("the admin pages answer"):
        for path in ("/livez", "/readyz", "/api/v1/cluster", "/api/v1/topics", "/api/v1/tier", "/api/v1/archive"):
            broker.get(path)
        metrics = broker.get("/metrics").decode()
        need("# TYPE tidelog_" in metrics, f"no tidelog_ metrics: {metrics[:200]}")
        cluster = broker.get_json("/api/v1/cluster")
        need(all(name in cluster for name in ("cluster_id", "name", "brokers", "groups", "version")), f"{cluster}")
