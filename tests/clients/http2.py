"""HTTP/2 in frames (RFC 9113), for what clients hide: windows that open when a test says so, calls that do not end."""

import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
CANCEL = 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4
FRAME_BYTES_MAX = 16_384
SECONDS = 120  # only bounds a test that hangs


class Connection:
    """A connection on which each answer may send `window` bytes until more is allowed."""

    def __init__(self, port, window):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.send(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, kind, flags, stream, payload):
        self.socket.sendall(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload)

    def post(self, stream, path, headers, body, end=True, method="POST"):
        """Posts; the body must fit into the windows that everybody has, all requests together. `end`: whether it ends."""
        fields = [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path), *headers]
        # Literals that nobody remembers (RFC 7541, 6.2.2), no name or value of them longer than 126 bytes.
        strings = [[bytes([len(text)]) + text.encode() for text in field] for field in fields]
        self.send(HEADERS, END_HEADERS, stream, b"".join(b"\0" + name + value for name, value in strings))
        self.post_more(stream, body)
        if end:
            self.send(DATA, END_STREAM, stream, b"")

    def post_more(self, stream, body):
        for at in range(0, len(body), FRAME_BYTES_MAX):
            self.send(DATA, 0, stream, body[at : at + FRAME_BYTES_MAX])

    def begun(self, streams, count):
        """What has come of these answers when there are so many bytes of each."""
        got = dict.fromkeys(streams, b"")
        while any(len(data) < count for data in got.values()):
            kind, _, stream, payload = self.receive()
            got[stream] += payload if kind == DATA else b""
        return got

    def ended(self, got):
        """The same to their ends."""
        open_still = set(got)
        while open_still:
            kind, flags, stream, payload = self.receive()
            got[stream] += payload if kind == DATA else b""
            open_still -= {stream} if flags & END_STREAM else set()
        return got

    def answer(self):
        """All data of the one answer that is still to come, to its end."""
        data, flags = b"", 0
        while not flags & END_STREAM:
            kind, flags, _, payload = self.receive()
            assert kind in (DATA, HEADERS), (kind, payload)
            data += payload if kind == DATA else b""
        return data

    def open(self, stream, count):
        """Allows so many more bytes to an answer; stream 0: to all together."""
        self.send(WINDOW_UPDATE, 0, stream, struct.pack(">I", count))

    def receive(self, may_go=False):
        """The next frame that is about a request: its kind, flags, stream and payload. `may_go`: whether the server may say that it goes."""
        while True:
            head = self.exactly(9)
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = self.exactly(int.from_bytes(head[:3], "big"))
            assert kind != GOAWAY or may_go, payload
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.send(kind, ACK, 0, payload if kind == PING else b"")
            elif stream:
                return kind, flags, stream, payload

    def exactly(self, count):
        parts = []
        while count:
            part = self.socket.recv(min(count, 1 << 20))
            assert part, "the connection was closed"
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
