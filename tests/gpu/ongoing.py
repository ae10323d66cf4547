"""What a server does on a GPU beside answering: it records graphs while others compute, and gives the GPU back and takes it again."""

import array
import json
import math
import random
import time

import machine
from examples import ON_GPU, answers, localize, need_networks, rows_of
from registry import check, folder_of, need
from served import Asking, Server, environment_of_own, until
from small import attending, convolving, finding, gathering, noisy, passing, shaped, unlike

ON_ANY = '\n[placement]\ndevices = "gpu"\nfallback = "cpu"\n'
# Two copies, and batches of several sizes, so that each copy records several graphs.
GRAPHS = ON_GPU + "instances = 2\n\n[gpu]\ncuda_graph = true\n"
BURSTS = 3
# For so long batches of all sizes are asked for.
SIZES_S = 8
# What the log says of a network.
RECORDED, WITHOUT = "recorded", ("loaded without CUDA graphs", "no CUDA graphs are recorded for the model any more")


def read_digits(server, pictures, expected):
    """One after the other: who answered the last."""
    for picture in pictures:
        reply = server.ask("POST", "/predictions/digits", picture.read_bytes())
        need(reply.status == 200, f"{picture.name}: status {reply.status}: {reply.body[:200]!r}")
        found, known = reply.json()["classes"][0], expected[picture.name]["classes"][0]
        need(found["label"] == known["label"], f"{picture.name} is read as {found['label']!r}, by the CPU as {known['label']!r}")
        need(abs(found["score"] - known["score"]) < 0.01, f"{picture.name}: {found['score']}, by the CPU {known['score']}")
    return reply.device()


@check("graphs", "a network that records CUDA graphs is loaded while another computes, and both answer rightly")
def graphs(run):
    need_networks(run)
    expected = answers(run, "digits", gpu=False)
    pictures = sorted((run.root() / "examples/images/digits").glob("*.png"))
    models = run.root() / "examples/models"
    # The fitter keeps the GPU busy from a thread of its own while graphs are recorded.
    both = {"digits": (models / "digits", GRAPHS), "spots": (models / "spots", ON_GPU)}
    server = Server(run, both, backend="gpu", repository_mode="explicit", startup_models="spots")
    count = len(rows_of(localize(run, server)))

    def localized():
        reply = localize(run, server)
        need(len(rows_of(reply)) == count, f"{len(rows_of(reply))} spots instead of {count}")
        return reply.device()

    beside = Asking(2, localized)
    for _ in range(BURSTS):
        loaded = server.ask("POST", "/v2/repository/models/digits/load")
        need(loaded.status == 200, f"not loaded: status {loaded.status}: {loaded.body[:300]!r}")
        asking = Asking(8, lambda: read_digits(server, pictures, expected))
        until(lambda asking=asking: len(asking.answers) > 15 or None, "digits are read")
        asking.stop()
        need(all(device.startswith(("GPU-", "MIG-")) for _, _, device in asking.answers), "not all were read on the GPU")
        server.ask("POST", "/v2/repository/models/digits/unload")
    run.number("answers_beside_graphs", beside.stop())
    server.stop()


@check("graphs-sizes", "batches of all sizes in turn, of networks that record graphs by themselves and of others, against the CPU", where="gpu")
def sizes(run):
    need_networks(run)
    made, source = folder_of(run.out / "made"), random.Random(7)
    together, alone = "items_max = 16", 'axis = "none"'
    networks = {
        "attending": (attending, [3, 32, 32], together),
        "convolving": (convolving, [3, 16, 16], together),
        # Not recorded: what nothing is computed of, what has no shape before a run, and what the CPU gives.
        "passing": (passing, [64], together),
        "finding": (finding, [64], alone),
        "shaped": (shaped, [64], alone),
        "unlike": (unlike, [], alone),
    }
    asked = {name: [] for name in networks}
    for name, (network, shape, batch) in networks.items():
        (folder_of(made / name) / "model.onnx").write_bytes(network())
        (made / name / "model.toml").write_text(f"[batch]\n{batch}\n")
        size = math.prod(shape)
        for items in (1, 2, 3, 5, 8, 1, 4, 7):
            numbers = (source.gauss(0, 1) for _ in range(items * size))
            # Some are the same.
            data = array.array("f", (round(number) if name == "unlike" else number for number in numbers)).tobytes()
            tensor = {"name": "x", "datatype": "FP32", "shape": [items, *shape], "parameters": {"binary_data_size": len(data)}}
            head = json.dumps({"inputs": [tensor]}).encode()
            asked[name].append((head + data, {"Inference-Header-Content-Length": str(len(head))}))

    def infer(server, name, index):
        reply = server.ask("POST", f"/v2/models/{name}/infer", *asked[name][index])
        need(reply.status == 200, f"{name}: status {reply.status}: {reply.body[:300]!r}")
        return reply.device(), [output["data"] for output in reply.json()["outputs"]]

    on_cpu = Server(run, {name: (made / name, "") for name in networks}, name="on-cpu", backend="cpu")
    expected = {name: [infer(on_cpu, name, index)[1] for index in range(len(asked[name]))] for name in networks}
    on_cpu.stop()
    models = {name: (made / name, ON_GPU + "instances = 2\n") for name in networks}
    server = Server(run, models, backend="gpu")
    apart = []

    def one():
        name = source.choice(list(networks))
        index = source.randrange(len(asked[name]))
        device, outputs = infer(server, name, index)
        need(device.startswith(("GPU-", "MIG-")), f"answered by {device!r}")
        for got, right in zip(outputs, expected[name][index], strict=True):
            off = max(abs(a - b) for a, b in zip(got, right, strict=True)) / (max(abs(b) for b in right) or 1)
            apart.append(off)
            need(off < 0.01, f"{name}: {off} of the largest apart from the CPU")
        return device

    asking = Asking(12, one)
    time.sleep(SIZES_S)
    run.number("answers_of_sizes", asking.stop())
    run.number("sizes_apart", max(apart))
    said = server.log.read_text(errors="replace").splitlines()
    for name in ("attending", "convolving"):
        of = [line for line in said if f"/{name}/" in line]
        without = [line for line in of if any(word in line for word in WITHOUT)]
        need(any(RECORDED in line for line in of) and not without, f"{name} is served without CUDA graphs: {without}")
    server.stop()


@check("graphs-given-up", "networks that cannot be recorded, or not replayed, are served without CUDA graphs, and others with", where="gpu")
def given_up(run):
    need_networks(run)
    made, draw = folder_of(run.out / "made"), random.Random(5).random
    networks = {"noisy": (noisy, [2, 4]), "gathering": (gathering, [1, 16]), "convolving": (convolving, [3, 3, 16, 16])}
    inputs = {}
    for name, (network, shape) in networks.items():
        (folder_of(made / name) / "model.onnx").write_bytes(network())
        # Of what draws numbers nobody can see whether its rows are computed each for itself.
        (made / name / "model.toml").write_text('[batch]\naxis = "items"\n')
        size = 1
        for side in shape:
            size *= side
        # A third of them is nothing once one is added.
        inputs[name] = [{"name": "x", "datatype": "FP32", "shape": shape, "data": [draw() if draw() > 1 / 3 else -1.0 for _ in range(size)]}]

    def infer(server, name):
        reply = server.ask("POST", f"/v2/models/{name}/infer", json.dumps({"inputs": inputs[name]}))
        need(reply.status == 200, f"{name}: status {reply.status}: {reply.body[:300]!r}")
        return reply.device(), reply.json()["outputs"][0]["data"]

    on_cpu = Server(run, {name: (made / name, "") for name in networks}, name="on-cpu", backend="cpu")
    expected = {name: infer(on_cpu, name)[1] for name in networks}
    on_cpu.stop()
    for isolation in ("thread", "process"):
        models = {name: (made / name, ON_ANY + '\n[gpu]\ncuda_graph = "auto"\n') for name in networks}
        server = Server(run, models, name=isolation, backend="gpu", isolation=isolation, isolation_bytes="64MiB")
        for name in networks:
            answers = [infer(server, name) for _ in range(8)]
            need(all(device.startswith(("GPU-", "MIG-")) for device, _ in answers), f"{name}: answered by {answers[0][0]!r}")
            answers = [answer for _, answer in answers]
            if name == "noisy":
                need(len({tuple(answer) for answer in answers}) == len(answers), "the same numbers are drawn again")
                continue
            off = max(abs(a - b) for answer in answers for a, b in zip(answer, expected[name], strict=True))
            need(off < 0.01 * max(abs(b) for b in expected[name]), f"{name}: {off} apart from the CPU")
        said = server.log.read_text(errors="replace").splitlines()
        for name in networks:
            of = [line for line in said if f"/{name}/" in line]
            recorded, without = any(RECORDED in line for line in of), [line for line in of if any(word in line for word in WITHOUT)]
            print(isolation, name, "recorded" if recorded and not without else f"without: {without}", flush=True)
            need(without or name == "convolving", f"{name} is said to be recorded")
            need(recorded and not without or name != "convolving", f"{name} is served without CUDA graphs: {without}")
        server.stop()


def in_use(run):
    """Bytes of the GPU that are in use, where NVML tells."""
    return machine.nvml().memory().used if machine.nvml() and not run.rehearsal else None


def given_back(run, isolation):
    before = in_use(run)
    source = run.root() / "examples/models/spots"
    server = Server(
        run, {"spots": (source, ON_ANY)}, name=isolation, environment=environment_of_own(run), backend="auto",
        isolation=isolation, isolation_bytes="16MiB", idle_release_ms=700,
    )  # fmt: skip
    # It may be idle for so long before the first request comes.
    expected, again = len(rows_of(localize(run, server))), []
    for _ in range(BURSTS):
        until(lambda: server.gpu()["state"] != "serving" or None, "the GPU is given back", 60)
        if before is not None:
            until(lambda: in_use(run) < before + (16 << 20) or None, "its memory is free again", 30)
        began = time.monotonic()

        def answer():
            reply = localize(run, server)
            found = len(rows_of(reply))
            need(found == expected, f"{found} spots instead of {expected}")
            return reply.device()

        asking = Asking(3, answer)
        until(lambda asking=asking: any(d.startswith(("GPU-", "MIG-")) for _, _, d in asking.answers) or None, "it is taken again", 60)
        again.append(time.monotonic() - began)
        asking.stop()
    run.number(f"taken_again_{isolation}_s", sorted(again)[len(again) // 2])
    server.stop()


# A server that has nothing to do for half a minute lets go of what it can have again.
RESTS_AFTER = 33


@check("network-rests", "a network that had nothing to do for half a minute, and let go of memory, answers as before", where="gpu")
def rests(run):
    need_networks(run)
    models = ("digits-detector", "digits")
    # What is recorded keeps its memory.
    sources = {name: (run.root() / "examples/models" / name, ON_GPU) for name in models}
    pictures = {name: sorted((run.root() / "examples/images" / name).glob("*.png"))[:4] for name in models}
    for isolation in ("thread", "process"):
        server = Server(run, sources, name=isolation, backend="gpu", isolation=isolation, isolation_bytes="64MiB")

        def read(server=server):
            replies = [server.ask("POST", f"/predictions/{name}", one.read_bytes()) for name in models for one in pictures[name]]
            need(all(reply.status == 200 for reply in replies), f"statuses {[reply.status for reply in replies]}")
            need(all(reply.device().startswith(("GPU-", "MIG-")) for reply in replies), "not all were answered by the GPU")
            # Another algorithm may be chosen afterwards, which rounds otherwise.
            found = [reply.json() for reply in replies]
            return [[one["label"] for one in reply.get("detections", reply.get("classes", [])[:1])] for reply in found]

        before, used = read(), in_use(run)
        time.sleep(RESTS_AFTER)
        if used is not None:
            run.number(f"rested_bytes_{isolation}", used - in_use(run))
        need(read() == before, "other answers after the rest than before")
        server.stop()


@check("given-back", "an idle server gives the GPU back whole, and takes it again with the next request")
def given_back_and_taken(run):
    for isolation in ("thread", "process"):
        given_back(run, isolation)


@check("given-back-network", "what a process in which ONNX Runtime ran keeps of a GPU that is given back", where="gpu")
def given_back_network(run):
    need_networks(run)
    source, picture = run.root() / "examples/models/digits", next((run.root() / "examples/images/digits").glob("*.png"))
    # By itself it is a process, where GPUs are given back.
    for isolation in ("thread", "auto"):
        before = in_use(run)
        server = Server(
            run, {"digits": (source, ON_ANY)}, name=isolation, backend="auto", isolation=isolation, isolation_bytes="64MiB", idle_release_ms=700
        )  # fmt: skip

        def device(server=server):
            reply = server.ask("POST", "/predictions/digits", picture.read_bytes())
            need(reply.status == 200, f"status {reply.status}: {reply.body[:200]!r}")
            return reply.device()

        for _ in range(BURSTS):
            until(lambda device=device: device().startswith(("GPU-", "MIG-")) or None, "the GPU answers", 60)
            until(lambda server=server: server.gpu()["state"] != "serving" or None, "the GPU is given back", 60)
        # What goes last may go after the state was told.
        seen = [in_use(run)]
        while len(seen) < 4 or len(set(seen[-4:])) > 1:
            time.sleep(0.3)
            seen.append(in_use(run))
        run.number(f"left_bytes_{isolation}", seen[-1] - before)
        need(isolation == "thread" or seen[-1] < before + (16 << 20), f"{seen[-1] - before} bytes stay without a process")
        server.stop()
