"""Real processes on free ports in a clean folder: the broker, the S3 server, the command line.

Owns: starting, stopping, killing and waiting by condition.
Not here: what is checked with them.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from report import Difference, need

START_TIMEOUT = 60
STOP_TIMEOUT = 60
COMMAND_TIMEOUT = 180


def program(variable):
    path = os.environ.get(variable)
    if not path:
        raise SystemExit(f"{variable} is not set: run `cargo xtask clients`")
    return path


def free_port():
    """A port nobody listens on, below those the system gives to outgoing connections: while a broker is
    down, a client that tries again must not get its port, nor connect to itself."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def wait_for(what, condition, timeout, pause=0.02):
    """Waits until the condition returns something true, and returns that."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Difference(f"waited {timeout} s for {what}")
        time.sleep(pause)


class Place:
    """A clean folder for one suite; kept when the suite fails."""

    def __init__(self, suite):
        self.path = Path(tempfile.mkdtemp(prefix=f"tidelog-{suite}-"))

    def remove(self):
        shutil.rmtree(self.path)


class S3:
    """A SeaweedFS of its own, started by minio-dev."""

    def __init__(self, place):
        self.folder = place.path / "s3"
        run([program("MINIO_DEV_BIN"), "up", "--server", "seaweedfs", "--port", "0", "--data-dir", self.folder])
        self.state = json.loads((self.folder / "minio-dev.json").read_text())
        self.url = f"s3://{self.state['bucket']}/first/light"

    @property
    def flags(self):
        return ["--store", self.url, "--set", f"store.endpoint={self.state['endpoint']}", "--set", "store.path-style=true"]

    @property
    def environment(self):
        return {
            "AWS_ACCESS_KEY_ID": self.state["access_key"],
            "AWS_SECRET_ACCESS_KEY": self.state["secret_key"],
            "AWS_REGION": self.state["region"],
        }

    def check(self):
        return run([program("MINIO_DEV_BIN"), "check", "--data-dir", self.folder])

    def stop(self):
        if (self.folder / "minio-dev.json").exists():
            run([program("MINIO_DEV_BIN"), "down", "--data-dir", self.folder])


class Broker:
    """`tidelog dev` on free ports; a restart keeps folder and ports."""

    # Of a topic that is created.
    replicas = 1
    # Whether a producer that is not idempotent may have had to send again.
    may_repeat = False

    def __init__(self, place, name="dev", s3=None, flags=()):
        self.data = place.path / name
        self.log = place.path / f"{name}.log"
        self.kafka = f"127.0.0.1:{free_port()}"
        self.admin = f"127.0.0.1:{free_port()}"
        self.s3 = s3
        self.flags = list(flags)
        self.more_environment = {}
        self.process = None

    @property
    def url(self):
        return f"http://{self.admin}"

    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "TIDELOG_"))}
        return kept | (self.s3.environment if self.s3 else {}) | self.more_environment

    def command(self):
        command = [program("TIDELOG_BIN"), "dev", "--data-dir", self.data, "--kafka", self.kafka, "--admin", self.admin]
        return [str(word) for word in command + (self.s3.flags if self.s3 else []) + self.flags]

    def spawn(self):
        with open(self.log, "ab") as log:
            log.write(f"--- start {' '.join(self.command())}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment()
            )

    def start(self):
        self.spawn()
        wait_for("the broker to get ready", self.ready, START_TIMEOUT)

    def ready(self):
        code = self.process.poll()
        need(code is None, f"the broker ended with {code} while starting: {self.last_words()}")
        try:
            return self.get("/readyz", timeout=2) is not None
        except OSError:
            return False

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def stop(self):
        """SIGTERM; must end by itself, with exit code 0."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Difference(f"the broker did not end within {STOP_TIMEOUT} s after SIGTERM") from None
        self.process = None
        need(code == 0, f"the broker ended with {code} after SIGTERM: {self.last_words()}")

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self.process = None

    def clean_up(self):
        if self.alive():
            self.kill()

    def last_words(self):
        return self.log.read_bytes()[-2000:].decode(errors="replace").strip()

    def complaints(self):
        """Lines of the log that a broker in good order never writes."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if " ERROR " in line or "panicked" in line]

    def resident_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def get(self, path, timeout=30):
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            return answer.read()

    def get_json(self, path):
        return json.loads(self.get(path))

    def cli(self, *words, check=True, stdin=None):
        """Runs `tidelog WORDS`; its standard output."""
        command = [program("TIDELOG_BIN"), *words, "--bootstrap", self.kafka, "--admin-url", self.url]
        return run(command, check=check, stdin=stdin, environment=self.environment())

    def cli_json(self, *words):
        return json.loads(self.cli(*words, "--output", "json"))

    def tier_status(self):
        return self.cli_json("tier", "status")["partitions"]


def run(command, check=True, stdin=None, environment=None, timeout=COMMAND_TIMEOUT):
    """Runs a program to its end. Its output as bytes, or with check=False the finished process."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, input=stdin if stdin is not None else b"", capture_output=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or b"")[-1000:].decode(errors="replace")
        raise Difference(f"{' '.join(command)[:300]} did not end within {timeout} s: {said}") from None
    if not check:
        return done
    said = done.stderr[-2000:].decode(errors="replace").strip()
    need(done.returncode == 0, f"{' '.join(command)[:300]} ended with {done.returncode}: {said}")
    return done.stdout
