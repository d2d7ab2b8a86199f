"""Lines like those of public log collections, made from a seed, and those collections where they are.

Owns: the five shapes, the key of a line, the folder of real lines.
Not here: sending them.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(rb"blk_-?\d+")
PID = re.compile(rb"sshd\[(\d+)\]")


@dataclass(frozen=True)
class Lines:
    """The bytes of a whole file and how its lines are keyed."""

    name: str
    data: bytes
    keyed: bool

    @property
    def lines(self):
        return self.data.removesuffix(b"\n").split(b"\n")

    def key(self, line):
        if not self.keyed:
            return None
        if self.name.startswith("hdfs"):
            return BLOCK.search(line).group(0)
        return PID.search(line).group(1)


def real(root):
    """The collections of loghub, if the folder is there; not part of the project."""
    folder = Path(root).parent / "shared/data/loghub"
    return [
        Lines(f"{name.lower()}-loghub", (folder / f"{name}_2k.log").read_bytes(), name in ("HDFS", "OpenSSH"))
        for name in ("HDFS", "OpenSSH", "Apache", "OpenStack", "Zookeeper")
        if (folder / f"{name}_2k.log").exists()
    ]


def made(seed, count):
    """The same shapes from the seed. As in the real ones: line ends with a carriage return, trailing
    blanks, a last line without an end; and bytes above ASCII, which the real ones lack."""
    shapes = [("hdfs", hdfs, True), ("openssh", openssh, True), ("apache", apache, False), ("openstack", openstack, False), ("zookeeper", zookeeper, False)]
    result = []
    for name, shape, keyed in shapes:
        rng = random.Random(f"{seed}/{name}")
        lines = [shape(rng, number).encode() + rng.choice([b"\r", b"\r", b"", b" \r"]) for number in range(count)]
        data = b"\n".join(lines) + (b"\n" if name == "hdfs" else b"")
        result.append(Lines(f"{name}-made", data, keyed))
    return result


def address(rng):
    return f"10.{rng.randrange(250, 252)}.{rng.randrange(256)}.{rng.randrange(256)}"


def hdfs(rng, number):
    # Few blocks with many lines each, so that order per key says something.
    block = f"blk_{random.Random(rng.randrange(60)).randrange(-(2**63), 2**63)}"
    thread = rng.randrange(10, 30000)
    head = f"0811{9 + number // 1000:02} {number % 240000:06} {thread}"
    return head + rng.choice(
        [
            f" INFO dfs.DataNode$PacketResponder: PacketResponder {rng.randrange(3)} for block {block} terminating",
            f" INFO dfs.FSNamesystem: BLOCK* NameSystem.addStoredBlock: blockMap updated: {address(rng)}:50010 is added to {block} size 67108864",
            f" INFO dfs.DataNode$DataXceiver: Receiving block {block} src: /{address(rng)}:{thread + 9} dest: /{address(rng)}:50010",
            f" WARN dfs.DataNode$DataXceiver: {address(rng)}:50010:Got exception while serving {block} to /{address(rng)}:",
        ]
    )


def openssh(rng, number):
    user = rng.choice(["root", "admin", "oracle", "wébmaster", "0", "müller"])
    head = f"Dec 10 {6 + number // 3600:02}:{number // 60 % 60:02}:{number % 60:02} LabSZ sshd[{24200 + rng.randrange(40)}]: "
    host = f"{rng.randrange(1, 224)}.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}"
    return head + rng.choice(
        [
            f"Invalid user {user} from {host}",
            f"Failed password for invalid user {user} from {host} port {rng.randrange(1024, 65536)} ssh2",
            f"pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost={host} ",
            f"reverse mapping checking getaddrinfo for ns.example.net [{host}] failed - POSSIBLE BREAK-IN ATTEMPT!",
            "PAM service(sshd) ignoring max retries; 6 > 3",
        ]
    )


def apache(rng, number):
    head = f"[Sun Dec 04 {number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02} 2005] "
    return head + rng.choice(
        [
            "[notice] workerEnv.init() ok /etc/httpd/conf/workers2.properties",
            f"[notice] jk2_init() Found child {rng.randrange(1000, 33000)} in scoreboard slot {rng.randrange(6, 12)}",
            f"[error] mod_jk child workerEnv in error state {rng.randrange(6, 9)}",
            f"[error] [client {address(rng)}] Directory index forbidden by rule: /var/www/html/",
        ]
    )


def openstack(rng, number):
    request = f"req-{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-{rng.getrandbits(48):012x}"
    head = f"nova-api.log.1.2017-05-16_13:53:08 2017-05-16 00:{number // 60 % 60:02}:{number % 60:02}.{rng.randrange(1000):03} 25746 INFO "
    return head + rng.choice(
        [
            f'nova.osapi_compute.wsgi.server [{request} - - -] {address(rng)} "GET /v2/servers/detail HTTP/1.1" status: 200 len: 1893 time: 0.{rng.randrange(10**7):07}',
            f"nova.compute.manager [{request} - - - - -] [instance: {rng.getrandbits(64):016x}] Took {rng.randrange(90)}.00 seconds to destroy the instance on the hypervisor.",
        ]
    )


def zookeeper(rng, number):
    head = f"2015-07-29 {number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02},{rng.randrange(1000):03} - "
    return head + rng.choice(
        [
            "INFO  [QuorumPeer[myid=1]/0:0:0:0:0:0:0:0:2181:FastLeaderElection@774] - Notification time out: 60000",
            "WARN  [RecvWorker:188978561024:QuorumCnxManager$RecvWorker@765] - Interrupting SendWorker",
            f"INFO  [CommitProcessor:3:ZooKeeperServer@595] - Established session 0x{rng.getrandbits(60):x} with negotiated timeout 20000 for client /{address(rng)}:{rng.randrange(1024, 65536)}",
        ]
    )
