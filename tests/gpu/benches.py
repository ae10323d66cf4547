"""Measurements. On the fake driver they are rehearsed, as small as can be, and give no numbers."""

import json
import socket
import subprocess
import sys
import threading
import time

import machine
from examples import ON_GPU, need_networks
from registry import SKIPPED, Failed, Skipped, check, folder_of, need, reason
from resnet import resnet
from served import Server

# Callers at once while throughput is measured: more than batches that a GPU has on its way.
CALLERS = 8


@check("bench-fit", "fits per second of the kernel alone, and from host to host", seconds=300, where="rehearsed")
def bench_fit(run):
    run.program("bench-fit")


@check("bench-preprocess", "the preprocessing of images against a plain copy", where="rehearsed")
def bench_preprocess(run):
    run.program("bench-preprocess")


@check("bench-jpeg", "JPEGs per second by nvJPEG and by the CPU", where="gpu")
def bench_jpeg(run):
    run.program("bench-jpeg")


def send(server, rois, count, seconds, errors):
    """Posts so many ROIs in one request and reads the answer to its end."""
    try:
        with socket.create_connection(server.address, timeout=120) as connection:
            head = (
                f"POST /predictions/spots?dtype=u16&shape={count},7,7&format=arrow&sigma_px=1.3 HTTP/1.1\r\nHost: bench\r\n"
                f"Content-Type: application/octet-stream\r\nContent-Length: {len(rois)}\r\nConnection: close\r\n\r\n"
            )

            def post():
                connection.sendall(head.encode())
                connection.sendall(rois)

            writer = threading.Thread(target=post)
            writer.start()
            buffer, got, first = bytearray(1 << 20), 0, b""
            while size := connection.recv_into(buffer):
                first = first or bytes(buffer[:64])
                got += size
            writer.join()
            need(first.startswith(b"HTTP/1.1 200"), f"answered with {first!r}")
            need(got > 32 * count, f"{got} bytes for {count} fits")
    except Exception as failed:  # told by whoever started this thread
        errors.append(failed)


@check("bench-fit-http", "fits per second through HTTP", seconds=300, where="rehearsed")
def bench_fit_http(run):
    connections, count = (2, 200) if run.rehearsal else (8, 1 << 20)
    source = run.root() / "examples/models/spots"
    size = "\n[batch]\nitems_max = 262144\n" if not run.rehearsal else "\n[batch]\nitems_max = 100\n"
    server = Server(run, {"spots": (source, ON_GPU + size)}, backend="gpu")
    # The example's movie is full of spots: what is fitted takes as long as what is found.
    pixels = (run.root() / "examples/images/spots.tif").read_bytes()[-2 * 49 * 1000 :]
    rois = pixels * (count // 1000 + 1)
    rois = rois[: 98 * count]
    print(f"{connections} connections, {count} ROIs in a request", flush=True)
    best = 0.0
    for _ in range(1 if run.rehearsal else 4):
        errors, began = [], time.monotonic()
        threads = [threading.Thread(target=send, args=(server, rois, count, 60, errors)) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise Failed(str(errors[0]))
        best = max(best, connections * count / (time.monotonic() - began))
    run.number("http_fits", best)
    server.stop()


class Busy:
    """Samples how busy the GPU is until it is asked for the mean."""

    def __init__(self):
        self.samples, self.stopping = [], threading.Event()
        self.thread = threading.Thread(target=self.go_on)
        self.thread.start()

    def go_on(self):
        while not self.stopping.wait(0.2):
            if machine.nvml():
                self.samples.append(machine.nvml().busy() / 100)

    def mean(self):
        self.stopping.set()
        self.thread.join()
        # The first and the last may reach beyond the load.
        inner = self.samples[2:-1]
        return sum(inner) / len(inner) if inner else None


def load(run, server, name, items, callers, seconds):
    """What `ocelli bench` sees of a server: answers per second, and the median latency in seconds."""
    out = run.out / "bench.json"
    command = [machine.program(), "bench", server.url(), name, "--as", "tensors", "--items", items, "--concurrency", callers]
    command += ["--seconds", seconds, "--warm-up-seconds", min(1, seconds), "--slo-ms", 10000, "--json", out]
    done = subprocess.run([str(word) for word in command], env=run.environment(), capture_output=True, text=True)
    print(done.stdout, done.stderr, flush=True)
    if done.returncode != 0:
        raise Failed(reason(done))
    (point,) = json.loads(out.read_text())["points"]
    need(point["failed"] == 0, f"requests failed: {point['statuses']}")
    return point["answered_per_second"], point["latency_ms"]["p50"] / 1e3


def alone(server, name, tensor, seconds):
    """The median time of one request after the other, in seconds, for a client that does nothing but wait: a thread and a socket. `tensor`:
    name, type, shape and bytes of the input."""
    input_name, datatype, shape, data = tensor
    inputs = [{"name": input_name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: bench\r\nInference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(text) + len(data)}\r\n\r\n"
    )
    request, buffer, times = head.encode() + text + data, bytearray(1 << 20), []
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            connection.sendall(request)
            got, length = 0, None
            while length is None or got < length:
                got += connection.recv_into(memoryview(buffer)[got:])
                end = buffer.find(b"\r\n\r\n", 0, got) if length is None else -1
                if end >= 0:
                    fields = bytes(buffer[:end]).lower().split(b"\r\n")
                    need(fields[0].startswith(b"http/1.1 200"), f"answered with {bytes(buffer[:got])[:200]!r}")
                    length = end + 4 + next(int(field.split(b":")[1]) for field in fields if field.startswith(b"content-length:"))
            times.append(time.perf_counter() - began)
    return sorted(times[len(times) // 10 :])[len(times) * 9 // 20]


def made(run, name, half):
    """A folder with ResNet-50 in it, on the fake driver with a small one."""
    need_networks(run)
    small = {"blocks": (1, 1, 1, 1), "width": 8, "side": 32, "classes": 10} if run.rehearsal else {}
    folder = folder_of(run.out / "made" / name)
    (folder / "model.onnx").write_bytes(resnet(half, **small))
    return folder


def manifest(items_max, on_gpu):
    """Of a network on the GPU alone; `on_gpu`: what its table of that name has."""
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in on_gpu.items())
    return f"[batch]\nitems_max = {items_max}\n{ON_GPU}\n[gpu]\n{table}"


def bench_network(run, name, half, **on_gpu):
    # What is so without being asked for is said, since the session has to be told.
    on_gpu = {"cuda_graph": "auto", **on_gpu}
    folder = made(run, name, half)
    run.program("bench-network", GPU_CHECKS_MODELS=folder, GPU_CHECKS_ON_GPU=",".join(key for key, value in on_gpu.items() if value))
    seconds = 0.3 if run.rehearsal else 4
    for items in (1, 2) if run.rehearsal else (1, 8, 32, 128):
        # No larger batches than those of the session.
        server = Server(run, {name: (folder, manifest(items, on_gpu))}, name=f"items-{items}", backend="gpu")
        busy = Busy()
        answers, _ = load(run, server, name, items, CALLERS, seconds)
        part = busy.mean()
        run.number(f"http_{name}_b{items}", answers * items)
        run.number(f"http_over_session_{name}_b{items}", answers * items / run.numbers[f"session_{name}_b{items}"])
        if items == 128 and part is not None:
            run.number(f"busy_{name}", part)
        if items == 1:
            _, median = load(run, server, name, 1, 1, seconds)
            run.number(f"added_p50_{name}", median - run.numbers[f"session_p50_{name}"])
            side = 32 if run.rehearsal else 224
            median = alone(server, name, ("image", "UINT8", [1, 3, side, side], bytes(range(256)) * (3 * side * side // 256)), seconds)
            run.number(f"added_waiting_p50_{name}", median - run.numbers[f"session_p50_{name}"])
        server.stop()


@check("bench-resnet50-fp32", "ResNet-50 through HTTP against its session in-process", seconds=1200, where="rehearsed")
def bench_resnet50_fp32(run):
    bench_network(run, "resnet50-fp32", half=False)


@check("bench-resnet50-fp16", "the same in half precision", seconds=1200, where="rehearsed")
def bench_resnet50_fp16(run):
    bench_network(run, "resnet50-fp16", half=True)


@check("bench-resnet50-fp16-plain", "the same without CUDA graphs", seconds=1200, where="rehearsed")
def bench_resnet50_fp16_plain(run):
    bench_network(run, "resnet50-fp16-plain", half=True, cuda_graph=False)


@check("bench-resnet50-fp16-last", "the same with graphs and channels last", seconds=1200, where="rehearsed")
def bench_resnet50_fp16_last(run):
    bench_network(run, "resnet50-fp16-last", half=True, channels_last=True)


def singles(run, name, **on_gpu):
    """Images that come one by one, which the server puts together to batches of up to 64."""
    folder = made(run, name, half=True)
    began = time.monotonic()
    server = Server(run, {name: (folder, manifest(64, on_gpu))}, name=name, backend="gpu")
    run.number(f"start_{name}", time.monotonic() - began)
    for callers in (1, 2) if run.rehearsal else (1, 16, 64, 128):
        answers, median = load(run, server, name, 1, callers, 0.3 if run.rehearsal else 4)
        run.number(f"singles_{name}_c{callers}", answers)
        run.number(f"singles_p50_{name}_c{callers}", median)
    server.stop()


@check("bench-singles", "images one by one through HTTP, put together by the server", seconds=600, where="rehearsed")
def bench_singles(run):
    singles(run, "plain", cuda_graph=False)
    singles(run, "graph")
    singles(run, "graph-last", channels_last=True)


# Looking for the fastest kernels takes PyTorch many minutes for each size; GPU_CHECKS_TORCH names another way to compile.
@check("bench-torch", "ResNet-50 in half precision by PyTorch in-process", seconds=2400, where="gpu")
def bench_torch(run):
    script = machine.HERE / "peer_torch.py"
    child = subprocess.Popen([sys.executable, str(script)], env=run.environment(), stdout=subprocess.PIPE, text=True)
    lines = []
    # In the log as it comes: whoever stops it has what there was until then.
    for line in child.stdout:
        print(line, end="", flush=True)
        lines.append(line.strip())
        if line.startswith("number "):
            _, name, value = line.split()
            run.number(name, float(value))
    if child.wait() == SKIPPED:
        raise Skipped(next(line[5:] for line in lines if line.startswith("skip ")))
    need(child.returncode == 0, f"PyTorch ended with {child.returncode}: {lines[-1:]}")
