"""Frames and record batches made by hand, right and wrong.

Owns: the bytes. Spec: the Kafka protocol's own documentation.
Not here: what must happen with them (`check_hostile`).
"""

import socket
import struct

CRC_TABLE = []
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = (_crc >> 1) ^ (0x82F63B78 if _crc & 1 else 0)
    CRC_TABLE.append(_crc)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def string(text):
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text.encode()


def request(api, version, body, correlation=7, flexible=False):
    head = struct.pack(">hhi", api, version, correlation) + string("first-light")
    return head + (b"\0" if flexible else b"") + body


def framed(payload):
    return struct.pack(">i", len(payload)) + payload


def varint(number):
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(delta, key, value, length=None, headers=0):
    body = b"\0" + varint(0) + varint(delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(-1) if value is None else varint(len(value)) + value
    body += varint(headers)
    return varint(len(body) if length is None else length) + body


def batch(records, count, *, magic=2, attributes=0, last_delta=None, crc=None, length=None, stamp=1_700_000_000_000,
          producer=(-1, -1, -1)):
    """`records`: the bytes after the header, already compressed. What is not given is right."""
    last_delta = count - 1 if last_delta is None else last_delta
    tail = struct.pack(">hiqqqhii", attributes, last_delta, stamp, stamp, *producer, count) + records
    crc = crc32c(tail) if crc is None else crc
    body = struct.pack(">iBI", 0, magic, crc) + tail
    return struct.pack(">qi", 0, len(body) if length is None else length) + body


def good_batch(values=(b"one", b"two", b"three")):
    return batch(b"".join(record(n, b"k", v) for n, v in enumerate(values)), len(values))


def produce(topic, records, partition=0, acks=-1):
    """Produce version 7."""
    body = string(None) + struct.pack(">hi", acks, 10_000)
    body += struct.pack(">i", 1) + string(topic) + struct.pack(">ii", 1, partition)
    return request(0, 7, body + struct.pack(">i", len(records)) + records)


def peer_hello(cluster_name, lane=4, cluster=bytes(16), broker=99, length=None):
    """The first bytes between brokers (docs/protocols/peer.md). What is not given is right."""
    name = cluster_name.encode()
    size = 62 + len(name) + 4
    head = b"TLPR" + struct.pack("<HHHBB", 2, 2, size if length is None else length, lane, 0)
    body = head + cluster + struct.pack("<iQQiQH", broker, 99, 99, -1, 0, len(name)) + name
    return body + struct.pack("<I", crc32c(body))


def peer_frame(payload_length, header=b"\1", kind=8):
    """The start of a frame whose lengths are believed: its own CRC is right. No payload."""
    head = struct.pack("<IIBBHIQIII", len(header), payload_length, kind, 0, 0, 0, 1, 1000, 0, crc32c(header))
    return head + struct.pack("<I", crc32c(head)) + header


class Connection:
    def __init__(self, broker, timeout=20, address=None):
        host, port = (address or broker.kafka).rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        """False when the other side had closed already."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def no_more(self):
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                return None
            data += part
        return data

    def answer(self):
        """One answer without its length; None when the other side closed."""
        try:
            head = self.exactly(4)
            return None if head is None else self.exactly(struct.unpack(">i", head)[0])
        except ConnectionError:
            return None

    def rest(self, bytes_max=64 << 20):
        """Reads until the other side closes; TimeoutError when it does not."""
        seen = 0
        try:
            while seen < bytes_max and (part := self.socket.recv(65536)):
                seen += len(part)
        except ConnectionError:
            pass
        return seen


def api_versions(broker):
    """True when the broker answers a plain ApiVersions."""
    with Connection(broker) as connection:
        connection.send(framed(request(18, 0, b"")))
        answer = connection.answer()
        return answer is not None and struct.unpack(">ih", answer[:6]) == (7, 0)


def produce_error(broker, topic, records, partition=0):
    """The error code the batch got, and its base offset; or (None, None) when the broker closed."""
    with Connection(broker, timeout=60) as connection:
        connection.send(framed(produce(topic, records, partition)))
        answer = connection.answer()
        if answer is None:
            return None, None
        at = 4 + 4 + 2 + len(topic) + 4 + 4
        code, base = struct.unpack(">hq", answer[at : at + 10])
        return code, base


def end_offset(broker, topic, partition=0):
    """ListOffsets version 1, latest."""
    body = struct.pack(">ii", -1, 1) + string(topic) + struct.pack(">iiq", 1, partition, -1)
    with Connection(broker) as connection:
        connection.send(framed(request(2, 1, body)))
        answer = connection.answer()
        at = 4 + 4 + 2 + len(topic) + 4 + 4
        code, _, offset = struct.unpack(">hqq", answer[at : at + 18])
        return offset if code == 0 else f"error {code}"
