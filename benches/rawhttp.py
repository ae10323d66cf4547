"""A client that costs little: ready-made request bytes over a raw keep-alive socket, replies read without parsing."""

import json
import socket


def request(method, path, body=b"", headers=()):
    """The bytes of one request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def unpaced(side):
    """Has one side of a connection send as fast as the other takes it, whatever the machine's congestion control: bbr paces streams
    within a machine, which takes up to half of the time of 600 kB. Before it connects or listens; it keeps its pace otherwise."""
    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def infer(model, name, array, output, region=None):
    """The bytes of an inference request with one binary input and one binary output (Open Inference Protocol). The input is in
    the request, or at the beginning of a region of shared memory."""
    data = array.tobytes()
    where = {"binary_data_size": len(data)}
    if region is not None:
        where, data = {"shared_memory_region": region, "shared_memory_byte_size": len(data)}, b""
    head = {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": {"float32": "FP32", "uint8": "UINT8"}[array.dtype.name],
                "parameters": where,
            }
        ],
        "outputs": [{"name": output, "parameters": {"binary_data": True}}],
    }
    head = json.dumps(head).encode()
    headers = [("Inference-Header-Content-Length", len(head)), ("Content-Type", "application/octet-stream")]
    return request("POST", f"/v2/models/{model}/infer", head + data, headers)


def infer_message(model, name, array, output):
    """The same as a message of gRPC, `ModelInferRequest`, with the input as raw bytes."""

    def varint(number):
        low, rest = number & 0x7F, number >> 7
        return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])

    def field(number, content):
        return varint(number << 3 | 2) + varint(len(content)) + content

    shape = field(3, b"".join(varint(extent) for extent in array.shape))
    datatype = {"float32": b"FP32", "uint8": b"UINT8"}[array.dtype.name]
    described = field(1, name.encode()) + field(2, datatype) + shape
    return field(1, model.encode()) + field(5, described) + field(6, field(1, output.encode())) + field(7, array.tobytes())


class Connection:
    """One kept-alive connection."""

    def __init__(self, port, timeout=60):
        self.socket = socket.socket()
        unpaced(self.socket)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray(1 << 20)

    def close(self):
        self.socket.close()

    def send(self, data):
        """Posts ready-made bytes without waiting for a reply."""
        self.socket.sendall(data)

    def roundtrip(self, data):
        """Posts ready-made bytes; the status, the header bytes and the body of the reply."""
        self.socket.sendall(data)
        got, end = 0, -1
        while end < 0:
            got += self._more(got)
            end = self.buffer.find(b"\r\n\r\n", 0, got)
        head = bytes(self.buffer[:end]).lower()
        if b"\r\ntransfer-encoding: chunked" in head:
            return int(head[9:12]), head, self._chunks(end + 4, got)
        at = head.find(b"\r\ncontent-length:")
        if at < 0:
            raise ConnectionError(f"a reply without a length: {head!r}")
        length = int(head[at + 17 : (head + b"\r\n").find(b"\r\n", at + 2)])
        total = end + 4 + length
        if total > len(self.buffer):
            self.buffer.extend(bytes(total - len(self.buffer)))
        while got < total:
            got += self._more(got)
        return int(head[9:12]), head, bytes(self.buffer[end + 4 : total])

    def _chunks(self, at, got):
        """What lies in chunks, the first of which begins there."""
        body = b""
        while True:
            while (line := self.buffer.find(b"\r\n", at, got)) < 0:
                got += self._more(got)
            size = int(self.buffer[at:line], 16)
            begin, at = line + 2, line + 2 + size + 2
            if at > len(self.buffer):
                self.buffer.extend(bytes(at - len(self.buffer)))
            while got < at:
                got += self._more(got)
            if size == 0:
                return body
            body += bytes(self.buffer[begin : begin + size])

    def _more(self, got):
        count = self.socket.recv_into(memoryview(self.buffer)[got:])
        if count == 0:
            raise ConnectionError("the server closed the connection")
        return count
