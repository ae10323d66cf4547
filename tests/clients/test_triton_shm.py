"""Triton's system shared memory, by Triton's own clients over HTTP and gRPC: regions are registered, read, written, and left alone."""

import itertools
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
import wire
from by_triton import refuses, tensor
from server import until
from tritonclient.utils import serialize_byte_tensor

ROOT = Path(__file__).resolve().parents[2]
REGIONS_MAX = 4
TOKEN = "a-token-of-sixteen-or-more"
KEYS = (f"ocelli-test-{os.getpid()}-{number}" for number in itertools.count())
X = np.arange(32, dtype=np.float32).reshape(2, 16)


@pytest.fixture(scope="module")
def sharing(start_server):
    server = start_server(shared_memory_regions_max=REGIONS_MAX)
    yield server
    assert server.stop() == 0, "the server did not end in order"


@pytest.fixture(params=["http", "grpc"])
def client(sharing, request):
    kind, port = {"http": (triton_http, sharing.port), "grpc": (triton_grpc, sharing.grpc_port)}[request.param]
    with kind.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.kind = kind
        yield client
        client.unregister_system_shared_memory()


@pytest.fixture
def memory():
    """Makes memory to be shared; all of it is gone after the test."""
    made = []

    def make(size, key=None):
        made.append(shm.create_shared_memory_region("ours", key or next(KEYS), size))
        made[-1].key = made[-1]._shm_key
        return made[-1]

    yield make
    for handle in made:
        shm.destroy_shared_memory_region(handle)


def regions(client):
    """What is registered, over HTTP and gRPC alike: name to key, offset, size."""
    if client.kind is triton_http:
        entries = client.get_system_shared_memory_status()
    else:
        entries = client.get_system_shared_memory_status(as_json=True).get("regions", {}).values()
    return {entry["name"]: (entry["key"], int(entry.get("offset", 0)), int(entry["byte_size"])) for entry in entries}


def placed(client, name, shape, datatype, region, size, offset=0):
    """An input that lies in a region."""
    given = client.kind.InferInput(name, shape, datatype)
    given.set_shared_memory(region, size, offset=offset)
    return given


def wanted(client, name, region, size, offset=0):
    """An output that is to be put into a region."""
    output = client.kind.InferRequestedOutput(name)
    output.set_shared_memory(region, size, offset=offset)
    return output


def shape_of(client, reply, name):
    """The shape of an output that is not in the reply."""
    output = reply.get_output(name)
    if client.kind is triton_http:
        assert sorted(output) == ["datatype", "name", "shape"], output
        return output["shape"]
    # The C++ client looks for one for each output.
    assert list(reply.get_response().raw_output_contents) == [b""], reply.get_response()
    return list(output.shape)


def test_regions_are_listed_and_forgotten(client, memory):
    handle = memory(4096)
    assert regions(client) == {}
    client.register_system_shared_memory("whole", handle.key, 4096)
    client.register_system_shared_memory("a part of it", "/" + handle.key, 96, offset=4000)
    expected = {"whole": (handle.key, 0, 4096), "a part of it": ("/" + handle.key, 4000, 96)}
    assert regions(client) == expected
    one = client.get_system_shared_memory_status("whole")
    (one,) = one if client.kind is triton_http else one.regions.values()
    assert (one["name"] if client.kind is triton_http else one.name) == "whole"
    refuses(lambda: client.get_system_shared_memory_status("other"), 'no shared memory region "other"')
    client.unregister_system_shared_memory("whole")
    client.unregister_system_shared_memory("whole")
    assert list(regions(client)) == ["a part of it"]
    client.unregister_system_shared_memory()
    assert regions(client) == {}


def test_tensors_go_in_and_out_through_regions_at_offsets(client, memory):
    ours, theirs = memory(1 << 20), memory(1 << 20)
    shm.set_shared_memory_region(ours, [X], offset=1000 + 12)
    client.register_system_shared_memory("in", ours.key, 4096, offset=1000)
    client.register_system_shared_memory("out", theirs.key, 4096, offset=64)
    given = placed(client, "x", [2, 16], "FP32", "in", X.nbytes, offset=12)
    reply = client.infer("identity", [given], outputs=[wanted(client, "y", "out", 4000, offset=8)])
    assert (shm.get_contents_as_numpy(theirs, np.float32, [2, 16], offset=64 + 8) == X).all()
    assert shape_of(client, reply, "y") == [2, 16]
    # Nothing but the place was written.
    around = shm.get_contents_as_numpy(theirs, np.uint8, [1 << 20])
    assert not around[: 64 + 8].any() and not around[64 + 8 + X.nbytes :].any()
    # In through a region, out in the reply, and the other way round.
    assert (client.infer("identity", [given]).as_numpy("y") == X).all()
    client.infer("identity", [tensor(client.kind, "x", X + 1)], outputs=[wanted(client, "y", "out", X.nbytes)])
    assert (shm.get_contents_as_numpy(theirs, np.float32, [2, 16], offset=64) == X + 1).all()


def test_several_inputs_lie_in_one_region_or_come_in_both_ways(client, memory):
    a, b = np.float32([[1, 2, 3, 4]]), np.float32([[10, 20, 30, 40]])
    handle = memory(64)
    shm.set_shared_memory_region(handle, [a, b])
    client.register_system_shared_memory("r", handle.key, 64)
    first = placed(client, "a", [1, 4], "FP32", "r", 16)
    second = placed(client, "b", [1, 4], "FP32", "r", 16, offset=16)
    # The answer takes the place of what was asked.
    client.infer("add", [first, second], outputs=[wanted(client, "sum", "r", 16)])
    assert (shm.get_contents_as_numpy(handle, np.float32, [1, 4]) == a + b).all()
    for mixed in ([tensor(client.kind, "a", a), second], [second, tensor(client.kind, "a", a)]):
        assert (client.infer("add", mixed).as_numpy("sum") == a + b).all()


def test_images_strings_and_large_tensors_lie_in_regions(client, memory, digits):
    pixels = np.random.default_rng(1).integers(0, 256, (1, 32, 32, 1), np.uint8)
    handle = memory(4 << 20)
    client.register_system_shared_memory("r", handle.key, 4 << 20)
    shm.set_shared_memory_region(handle, [pixels])
    logits = client.infer("digits", [tensor(client.kind, "image", pixels, "UINT8")]).as_numpy("logits")
    same = client.infer("digits", [placed(client, "image", [1, 32, 32, 1], "UINT8", "r", pixels.nbytes)])
    assert (same.as_numpy("logits") == logits).all()
    files = serialize_byte_tensor(np.array([image for _, image, _ in digits[:3]], dtype=object))
    shm.set_shared_memory_region(handle, [files], offset=7)
    size = len(files.item())
    answers = client.infer("digits", [placed(client, "image", [3], "BYTES", "r", size, offset=7)]).as_numpy("logits")
    assert [str(answer.argmax()) for answer in answers] == [digit for _, _, digit in digits[:3]]
    # More than is copied on the thread of the connection.
    large = np.random.default_rng(2).random((20_000, 16), np.float32)
    shm.set_shared_memory_region(handle, [large])
    given = placed(client, "x", list(large.shape), "FP32", "r", large.nbytes)
    client.infer("identity", [given], outputs=[wanted(client, "y", "r", large.nbytes, offset=2 << 20)])
    assert (shm.get_contents_as_numpy(handle, np.float32, list(large.shape), offset=2 << 20) == large).all()


def test_what_cannot_be_registered_says_why(client, memory, tmp_path):
    handle = memory(100)
    register = client.register_system_shared_memory
    refuses(lambda: register("r", handle.key, 101), "do not lie in its 100 bytes")
    refuses(lambda: register("r", handle.key, 1, offset=100), "do not lie in its 100 bytes")
    refuses(lambda: register("r", handle.key, 2**63, offset=2**63), "do not lie in its 100 bytes")
    refuses(lambda: register("r", handle.key, 0), "1 or more")
    refuses(lambda: register("r", "ocelli-test-none", 1), "create it first")
    (tmp_path / "secret").write_bytes(b"secret")
    for key in (f"../..{tmp_path}/secret", f"{tmp_path}/secret", "..", ".", "", "/", f"x/../{handle.key}", "a\0b"):
        refuses(lambda key=key: register("r", key, 1), "no name of shared memory")
    link = Path("/dev/shm") / next(KEYS)
    link.symlink_to(tmp_path / "secret")
    try:
        refuses(lambda: register("r", link.name, 1), "it is a link")
    finally:
        link.unlink()
    for number in range(REGIONS_MAX):
        register(f"r{number}", handle.key, 100)
    refuses(lambda: register("r0", handle.key, 100), "registered already")
    refuses(lambda: register("r", handle.key, 100), "shared_memory_regions_max")
    assert len(regions(client)) == REGIONS_MAX


def test_a_request_that_asks_for_what_is_not_there_is_refused_and_the_server_goes_on(client, memory):
    handle = memory(256)
    client.register_system_shared_memory("r", handle.key, 200)

    def ask(shape=(2, 16), size=128, offset=0, region="r", outputs=None):
        given = placed(client, "x", list(shape), "FP32", region, size, offset=offset)
        return client.infer("identity", [given], outputs=outputs)

    refuses(lambda: ask(region="s"), 'no shared memory region "s"')
    refuses(lambda: ask(size=124), "has 124 bytes, expected 128")
    refuses(lambda: ask(offset=73), "128 bytes at offset 73 do not lie in the 200 bytes")
    refuses(lambda: ask(offset=2**62), "do not lie in the 200 bytes")
    refuses(lambda: ask(outputs=[wanted(client, "y", "s", 128)]), 'no shared memory region "s"')
    refuses(lambda: ask(outputs=[wanted(client, "y", "r", 201)]), "do not lie in the 200 bytes")
    refuses(lambda: ask(outputs=[wanted(client, "y", "r", 127)]), 'output "y" has 128 bytes, more than the 127')
    # One cut short behind our back ends its requests, not the server, and does not grow again.
    os.truncate(Path("/dev/shm") / handle.key, 100)
    refuses(ask, "cut short")
    given = tensor(client.kind, "x", X)
    refuses(lambda: client.infer("identity", [given], outputs=[wanted(client, "y", "r", 128)]), "cut short")
    assert (Path("/dev/shm") / handle.key).stat().st_size == 100
    refuses(lambda: client.register_system_shared_memory("again", handle.key, 101), "do not lie in its 100 bytes")
    client.unregister_system_shared_memory("r")
    refuses(ask, 'no shared memory region "r"')
    assert (client.infer("identity", [given]).as_numpy("y") == X).all()


def test_a_region_outlives_its_name(client, memory):
    key = next(KEYS)
    handle = memory(128, key)
    shm.set_shared_memory_region(handle, [X])
    client.register_system_shared_memory("r", key, 128)
    (Path("/dev/shm") / key).unlink()
    try:
        reply = client.infer("identity", [placed(client, "x", [2, 16], "FP32", "r", 128)])
        assert (reply.as_numpy("y") == X).all()
    finally:
        (Path("/dev/shm") / key).touch()  # for who removes it


def test_a_request_under_way_answers_into_the_region_that_it_named(client, sharing, memory):
    ours, others = memory(64), memory(64)
    client.register_system_shared_memory("r", ours.key, 64)
    image, output = tensor(client.kind, "x", np.float32([[300]])), wanted(client, "y", "r", 64)
    port = {triton_http: sharing.port, triton_grpc: sharing.grpc_port}[client.kind]

    def ask():
        with client.kind.InferenceServerClient(f"127.0.0.1:{port}") as own:
            return own.infer("slow", [image], outputs=[output])

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        gauge = '\nocelli_queue_items{model="slow"} 1\n'
        until(lambda: asked.done() or gauge in requests.get(f"{sharing.url}/metrics", timeout=60).text, 60, "it runs")
        # Another caller's memory, under the same name.
        client.unregister_system_shared_memory("r")
        client.register_system_shared_memory("r", others.key, 64)
        shape = shape_of(client, asked.result(), "y")
    assert shm.get_contents_as_numpy(ours, np.float32, shape) == 300
    assert not shm.get_contents_as_numpy(others, np.uint8, [64]).any()


def test_shared_memory_is_no_other_form_and_not_for_streams(sharing, memory):
    handle = memory(128)
    with triton_http.InferenceServerClient(f"127.0.0.1:{sharing.port}") as client:
        client.register_system_shared_memory("r", handle.key, 128)
        place = {"shared_memory_region": "r", "shared_memory_byte_size": 128}

        def ask(inputs, outputs=(), **headers):
            body = {"inputs": [{"name": "x", "shape": [2, 16], "datatype": "FP32", **inputs}], "outputs": list(outputs)}
            url = f"{sharing.url}/v2/models/identity/infer"
            return requests.post(url, data=json.dumps(body), headers=headers, timeout=wire.TIMEOUT)

        data = {"data": X.ravel().tolist()}
        for more in ({"binary_data": True}, {"classification": 2}):
            reply = ask(data, [{"name": "y", "parameters": {**place, **more}}])
            assert reply.status_code == 400 and "ask for one" in reply.json()["error"], reply.text
        reply = ask({**data, "parameters": place})
        assert reply.status_code == 400 and "both data and" in reply.json()["error"], reply.text
        reply = ask(data, [{"name": "y", "parameters": place}], accept="application/x-ndjson")
        assert reply.status_code == 400 and "item by item" in reply.json()["error"], reply.text
        # Inputs may lie there.
        shm.set_shared_memory_region(handle, [X])
        reply = ask({"parameters": place}, accept="application/x-ndjson")
        lines = [json.loads(line) for line in reply.text.splitlines()]
        assert reply.status_code == 200 and str(X[0, 1]) in str(lines), reply.text
        # A page of others has a browser send such a request.
        reply = ask({"parameters": place}, origin="http://evil.example", **{"content-type": "text/plain"})
        assert reply.status_code == 403, reply.text
        client.unregister_system_shared_memory()


def test_what_went_through_memory_is_counted_and_the_extension_is_advertised(sharing, server, memory):
    def counts():
        text = requests.get(f"{sharing.url}/metrics", timeout=wire.TIMEOUT).text
        return [int(re.search(rf"^ocelli_shared_memory_{name} (\d+)$", text, re.MULTILINE)[1]) for name in (
            "regions", "read_bytes_total", "written_bytes_total"
        )]

    handle = memory(128)
    with triton_http.InferenceServerClient(f"127.0.0.1:{sharing.port}") as client:
        client.kind = triton_http
        client.register_system_shared_memory("r", handle.key, 128)
        before = counts()
        given = placed(client, "x", [1, 16], "FP32", "r", 64)
        client.infer("identity", [given], outputs=[wanted(client, "y", "r", 64, offset=64)])
        assert counts() == [1, before[1] + 64, before[2] + 64] and before[0] == 1
        # What perf_analyzer begins with, of memory that is never shared.
        assert client.get_cuda_shared_memory_status() == []
        client.unregister_cuda_shared_memory()
        client.unregister_system_shared_memory()
        assert counts()[0] == 0
        assert "system_shared_memory" in client.get_server_metadata()["extensions"]
    plain_server = requests.get(f"{server.url}/v2", timeout=wire.TIMEOUT).json()
    assert "system_shared_memory" not in plain_server["extensions"]


def test_it_is_off_unless_regions_are_allowed(server, memory):
    handle = memory(128)
    for kind, port in ((triton_http, server.port), (triton_grpc, server.grpc_port)):
        with kind.InferenceServerClient(f"127.0.0.1:{port}") as client:
            client.kind = kind
            told = "shared_memory_regions_max"
            refuses(lambda client=client: client.register_system_shared_memory("r", handle.key, 128), told)
            # What clients begin with, also those that share nothing.
            client.unregister_system_shared_memory()
            client.unregister_system_shared_memory("r")
            client.unregister_cuda_shared_memory()
            client.unregister_cuda_shared_memory("r")
            assert regions(client) == {}
            for name in ("", "r"):
                cuda = client.get_cuda_shared_memory_status(name)
                assert cuda == [] if kind is triton_http else not cuda.regions
            refuses(lambda client=client: client.get_system_shared_memory_status("r"), 'no shared memory region "r"')
            given = placed(client, "x", [2, 16], "FP32", "r", 128)
            refuses(lambda client=client, given=given: client.infer("identity", [given]), told)
    too_long = f"{server.url}/v2/systemsharedmemory/region/{'r' * 257}/unregister"
    wire.problem(requests.post(too_long, timeout=wire.TIMEOUT), 400, "257 bytes, more than the limit of 256")


def test_with_a_token_only_who_has_it_may_register_and_use_regions(start_server, only_digits, memory):
    server = start_server(only_digits, shared_memory_regions_max=1, admin_token=TOKEN)
    handle = memory(4096)
    for kind, port in ((triton_http, server.port), (triton_grpc, server.grpc_port)):
        headers = {"authorization": f"Bearer {TOKEN}"}
        with kind.InferenceServerClient(f"127.0.0.1:{port}") as client:
            client.kind = kind
            refuses(lambda client=client: client.register_system_shared_memory("r", handle.key, 4096), "admin_token")
            client.register_system_shared_memory("r", handle.key, 4096, headers=headers)
            refuses(lambda client=client: client.get_system_shared_memory_status(), "admin_token")
            given = [placed(client, "image", [1, 1, 32, 32], "FP32", "r", 4096)]
            refuses(lambda client=client, given=given: client.infer("digits", given), "admin_token")
            assert client.infer("digits", given, headers=headers).as_numpy("logits").shape == (1, 10)
            refuses(lambda client=client: client.unregister_system_shared_memory(), "admin_token")
            client.unregister_system_shared_memory(headers=headers)
    assert server.stop() == 0


def test_data_in_shared_memory_counts_as_that_of_a_body_does(start_server, models, tmp_path, memory):
    for name in ("digits", "slow"):
        (tmp_path / name).symlink_to(models / name)
    server = start_server(tmp_path, shared_memory_regions_max=1, timeout_ms=600_000, body_bytes_max="12KiB", in_flight_bytes_max="20KiB")
    handle = memory(16 << 10)
    shm.set_shared_memory_region(handle, [np.full(2048, 1e9, np.float32)])

    ports = {triton_http: server.port, triton_grpc: server.grpc_port}

    @contextmanager
    def opened(kind):
        with kind.InferenceServerClient(f"127.0.0.1:{ports[kind]}") as client:
            client.kind = kind
            yield client

    def ask(client, images):
        return client.infer("digits", [placed(client, "image", [images, 1, 32, 32], "FP32", "r", images << 12)]).as_numpy("logits")

    def hold():
        # It would take weeks.
        with opened(triton_grpc) as client:
            client.infer("slow", [placed(client, "x", [2048, 1], "FP32", "r", 8 << 10)])

    for kind in ports:
        with opened(kind) as client:
            if kind is triton_http:
                client.register_system_shared_memory("r", handle.key, 16 << 10)
            assert ask(client, 3).shape == (3, 10)
            refuses(lambda client=client: ask(client, 4), "the data in shared memory in bytes", "16384", "12288", "body_bytes_max")
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        runs = 'ocelli_queue_items{model="slow"} 2048'
        until(lambda: held.done() or runs in requests.get(f"{server.url}/metrics", timeout=60).text, 60, "it runs")
        for kind in ports:
            with opened(kind) as client:
                refuses(lambda client=client: ask(client, 3), "the budget for bytes in flight is full (20480)")
        server.kill()
        assert held.exception() is not None


def test_the_example_of_the_documents_works(sharing, capsys):
    page = (ROOT / "docs" / "api.md").read_text()
    (example,) = re.findall(r"```python\n(import numpy as np\nimport tritonclient\.http.*?)```", page, re.DOTALL)
    example = example.replace("127.0.0.1:8000", f"127.0.0.1:{sharing.port}").replace("my-images", next(KEYS))
    image = np.zeros((1, 1, 32, 32), np.float32)
    client = triton_http.InferenceServerClient(f"127.0.0.1:{sharing.port}")
    plain = triton_http.InferInput("image", image.shape, "FP32")
    plain.set_data_from_numpy(image)
    exec(example, {})
    assert capsys.readouterr().out.strip() == str(client.infer("digits", [plain]).as_numpy("logits"))
