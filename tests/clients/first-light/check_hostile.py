"""Hostile bytes against the real process: an error or a closed connection, memory in bounds, nothing appended.

Owns: the frames and batches that are sent, what each must lead to.
Not here: the decoder's own tests.
"""

import gzip
import io
import random
import struct

import lz4.frame
import zstandard

import clients
import wire
from report import need, same

TOPIC = "hostile"
# Of the producer that goes on beside them.
BESIDE = "hostile-beside"
MIB = 1 << 20
# Frames that announce much and send little must not take memory: one buffer budget (160 MiB), and slack
# for the allocator.
GROWTH_MAX = 320 * MIB


def run(report, broker):
    clients.create_confluent(broker, TOPIC, 1)
    clients.create_confluent(broker, BESIDE, 1)
    with report.check("a right batch made by hand is appended"):
        same("answer", wire.produce_error(broker, TOPIC, wire.good_batch()), (0, 0))
        same("end offset", wire.end_offset(broker, TOPIC), 3)
    watch = Watch(broker)
    frames(report, broker, watch)
    batches(report, broker, watch)
    with report.check("after all of it the broker appends as before"):
        same("answer", wire.produce_error(broker, TOPIC, wire.good_batch()), (0, 3))
        watch.check(end=6)


class Watch:
    """The broker is up, answers, has appended nothing, and its memory is in bounds."""

    def __init__(self, broker):
        self.broker = broker
        self.before = broker.resident_bytes()

    def check(self, end=3):
        need(self.broker.alive(), f"the broker died: {self.broker.last_words()}")
        need(wire.api_versions(self.broker), "the broker does not answer any more")
        same("end offset", wire.end_offset(self.broker, TOPIC), end)
        grown = self.broker.resident_bytes() - self.before
        need(grown <= GROWTH_MAX, f"resident memory grew by {grown // MIB} MiB")


def frames(report, broker, watch):
    for name, make in (
        ("lengths that are negative, too small or too large", lengths),
        ("requests cut at every byte", cut),
        ("requests with a hostile number at every byte", hostile_numbers),
        ("compact lengths and tag counts without end", compact),
        ("unknown requests and versions", unknown),
        ("HTTP, TLS and random bytes", strangers),
    ):
        with report.check(f"frames: {name}"):
            count = 0
            for data in make():
                poke(broker, data)
                count += 1
                if count % 100 == 0:
                    watch.check()
            watch.check()
            need(count > 0, "none were sent")
    with report.check("frames: many connections that announce much and send little hold up nobody"):
        announced(broker, watch)
    with report.check("frames: an unknown version of ApiVersions is answered in form 0 with the table"):
        unknown_api_versions(broker)


def poke(broker, data):
    """Sends and waits until the broker has answered and closed, or just closed."""
    with wire.Connection(broker, timeout=30) as connection:
        connection.send(data)
        connection.no_more()
        try:
            connection.rest()
        except TimeoutError:
            need(False, f"no answer and no close after {data[:40].hex()}… ({len(data)} bytes)")


def lengths():
    payload = wire.request(18, 0, b"")
    for length in (-1, -(2**31), 0, 1, 3, 7, 2**31 - 1, 101 * MIB, 1 << 30):
        yield struct.pack(">i", length) + payload
        yield struct.pack(">i", length)


def templates():
    """One valid request of each kind that takes counts. The batch in Produce has a wrong CRC: whatever is
    changed around it, it cannot be appended."""
    bad = wire.batch(wire.record(0, b"k", b"v"), 1, crc=1)
    topic = wire.string(TOPIC)
    one = struct.pack(">i", 1)
    yield wire.produce(TOPIC, bad)
    yield wire.request(1, 4, struct.pack(">iiiib", -1, 100, 1, 1000, 0) + one + topic + one + struct.pack(">iqi", 0, 0, 1000))
    yield wire.request(2, 1, struct.pack(">i", -1) + one + topic + one + struct.pack(">iq", 0, -1))
    yield wire.request(3, 1, one + topic)
    yield wire.request(8, 2, wire.string("g") + struct.pack(">i", -1) + wire.string("") + struct.pack(">q", -1) + one + topic + one + struct.pack(">iq", 0, 0) + wire.string("m"))
    yield wire.request(9, 1, wire.string("g") + one + topic + one + struct.pack(">i", 0))
    yield wire.request(10, 0, wire.string("g"))
    yield wire.request(11, 0, wire.string("g") + struct.pack(">i", 10_000) + wire.string("nobody") + wire.string("consumer") + one + wire.string("range") + struct.pack(">i", 3) + b"abc")
    yield wire.request(14, 0, wire.string("g") + struct.pack(">i", 1) + wire.string("m") + one + wire.string("m") + struct.pack(">i", 3) + b"abc")
    yield wire.request(15, 0, one + wire.string("g"))
    yield wire.request(18, 3, b"\x03ab\x03cd\x00", flexible=True)
    yield wire.request(22, 0, wire.string(None) + struct.pack(">i", 1000))
    yield wire.request(32, 1, one + struct.pack(">b", 2) + topic + one + wire.string("retention.ms") + b"\0")


def cut():
    for payload in templates():
        for end in range(len(payload)):
            yield wire.framed(payload[:end])
            if end % 7 == 0:
                # The frame says more than comes before the end of the stream.
                yield wire.framed(payload)[: 4 + end]


def hostile_numbers():
    for payload in templates():
        for position in range(8, len(payload) - 3, 2):
            for number in (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe"):
                yield wire.framed(payload[:position] + number + payload[position + 4 :])


def compact():
    endless = b"\xff\xff\xff\xff\x0f"
    for body in (endless, b"\x03ab" + endless, b"\x03ab\x03cd" + endless, b"\x03ab\x03cd\x01\x00" + endless, b"\xff" * 30):
        yield wire.framed(wire.request(18, 3, body, flexible=True))
    for api, version in ((3, 12), (0, 9), (1, 12), (19, 7), (60, 0)):
        yield wire.framed(wire.request(api, version, endless * 3, flexible=True))
        # The header's own tags.
        yield wire.framed(struct.pack(">hhi", api, version, 1) + wire.string(None) + endless)


def unknown():
    for api in (-1, 4, 5, 6, 7, 200, 32767, -32768):
        yield wire.framed(wire.request(api, 0, b""))
    for api in (0, 1, 2, 3, 8, 18, 19, 22):
        for version in (-1, 99, 32767):
            yield wire.framed(wire.request(api, version, b""))


def strangers():
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(507)
    rng = random.Random(1)
    for _ in range(200):
        yield rng.randbytes(rng.randrange(1, 400))
        yield wire.framed(rng.randbytes(rng.randrange(1, 400)))


def announced(broker, watch):
    """Each announces a frame just inside the largest size, sends 64 KiB of it, and stays."""
    head = wire.produce(TOPIC, b"")[:-4]
    length = 99 * MIB
    start = struct.pack(">i", length) + head + struct.pack(">i", length - len(head) - 4)
    connections = [wire.Connection(broker) for _ in range(150)]
    try:
        for connection in connections:
            connection.send(start + bytes(65536))
        # They stay open while others are served, large requests too.
        large = wire.batch(wire.record(0, b"k", bytes(500_000)), 1)
        for at in range(5):
            same("answer to a large batch beside them", wire.produce_error(broker, BESIDE, large), (0, at))
            watch.check()
    finally:
        for connection in connections:
            connection.socket.close()
    watch.check()


def unknown_api_versions(broker):
    with wire.Connection(broker) as connection:
        connection.send(wire.framed(wire.request(18, 127, b"\x01\x01\x00", flexible=True)))
        answer = connection.answer()
        need(answer is not None, "the connection was closed")
        correlation, code, count = struct.unpack(">ihi", answer[:10])
        same("correlation and error", (correlation, code), (7, 35))
        same("length of the answer", len(answer), 10 + 6 * count)
        need(count > 10, f"only {count} entries")
        connection.send(wire.framed(wire.request(18, 0, b"")))
        need(connection.answer() is not None, "the connection is not usable afterwards")


CORRUPT, TOO_LARGE, UNSUPPORTED_COMPRESSION, INVALID_RECORD = 2, 10, 76, 87


def batches(report, broker, watch):
    for name, data, wanted in bad_batches():
        with report.check(f"batches: {name}"):
            code, _ = wire.produce_error(broker, TOPIC, data)
            need(code in wanted, f"error {code}, wanted one of {wanted}")
            watch.check()


def bad_batches():
    two = wire.record(0, b"k", b"one") + wire.record(1, b"k", b"two")
    good = wire.batch(two, 2)
    yield "wrong CRC", wire.batch(two, 2, crc=12345), (CORRUPT,)
    yield "one flipped bit", good[:-1] + bytes([good[-1] ^ 1]), (CORRUPT,)
    yield "more records said than there", wire.batch(two, 3), (INVALID_RECORD,)
    yield "fewer records said than there", wire.batch(two, 1), (INVALID_RECORD,)
    yield "a count without end", wire.batch(two, 2**31 - 1), (INVALID_RECORD, CORRUPT)
    yield "a negative count", wire.batch(two, -1, last_delta=1), (INVALID_RECORD, CORRUPT)
    yield "no records", wire.batch(b"", 0), (INVALID_RECORD, CORRUPT)
    yield "a wrong last offset delta", wire.batch(two, 2, last_delta=5), (INVALID_RECORD,)
    yield "an offset delta twice", wire.batch(wire.record(0, b"k", b"one") * 2, 2), (INVALID_RECORD,)
    yield "a record longer than the batch", wire.batch(wire.record(0, b"k", b"v", length=10_000), 1), (INVALID_RECORD, CORRUPT)
    yield "header count without end", wire.batch(wire.record(0, b"k", b"v", headers=2**31 - 1), 1), (INVALID_RECORD, CORRUPT)
    for magic in (0, 1, 3, 255):
        yield f"magic {magic}", wire.batch(two, 2, magic=magic), (INVALID_RECORD, CORRUPT, 43)
    for codec in (5, 6, 7):
        yield f"codec {codec}", wire.batch(two, 2, attributes=codec), (UNSUPPORTED_COMPRESSION,)
    yield "a control batch", wire.batch(two, 2, attributes=0x20), (INVALID_RECORD,)
    yield "its length beyond the bytes", wire.batch(two, 2, length=100_000), (CORRUPT, INVALID_RECORD)
    yield "its length negative", wire.batch(two, 2, length=-5), (CORRUPT, INVALID_RECORD)
    yield "cut", good[:-3], (CORRUPT, INVALID_RECORD)
    yield "empty", b"", (CORRUPT, INVALID_RECORD)
    yield "not compressed as it says", wire.batch(two, 2, attributes=4), (INVALID_RECORD, CORRUPT)
    big = wire.record(0, b"k", bytes(1_200_000))
    yield "larger than the topic allows", wire.batch(big, 1), (TOO_LARGE,)
    yield from bombs()


def bombs():
    """Small batches that expand hugely: refused before they have."""
    value = 600 * MIB
    zeros = bytes(8 * MIB)
    head = b"\0" + wire.varint(0) + wire.varint(0) + wire.varint(-1) + wire.varint(value)
    start = wire.varint(len(head) + value + 1) + head

    def pieces():
        yield start
        for _ in range(value // len(zeros)):
            yield zeros
        yield wire.varint(0)

    zstd = zstandard.ZstdCompressor(level=3).compressobj()
    yield "a zstd bomb", wire.batch(b"".join(map(zstd.compress, pieces())) + zstd.flush(), 1, attributes=4), (TOO_LARGE, INVALID_RECORD)
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as writer:
        for piece in pieces():
            writer.write(piece)
    yield "a gzip bomb", wire.batch(out.getvalue(), 1, attributes=1), (TOO_LARGE, INVALID_RECORD)
    lz4_bytes = lz4.frame.compress(start + bytes(200 * MIB))
    yield "an lz4 bomb", wire.batch(lz4_bytes, 1, attributes=3), (TOO_LARGE, INVALID_RECORD)
    claim = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, 10) + b"\xff\xff\xff\xff\x0f" + bytes(5)
    yield "a snappy block that claims 4 GiB", wire.batch(claim, 1, attributes=2), (TOO_LARGE, INVALID_RECORD, CORRUPT)
