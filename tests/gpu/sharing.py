"""Others on the GPU, faults, and the end of the server: what can be had of that on a real GPU."""

import time

import machine
from examples import localize, rows_of
from ongoing import in_use
from registry import Skipped, check, need
from served import Asking, Server, environment_of_own, holder, release, until

ANYWHERE = '\n[placement]\ndevices = "gpu"\nfallback = "cpu"\n'
# Small batches, so that the movie is many of them.
SHARED = '\n[placement]\ndevices = "all"\n\n[batch]\nitems_max = 64\n'


def serve(run, more=ANYWHERE, environment=None, **options):
    source = run.root() / "examples/models/spots"
    variables = environment_of_own(run) | (environment or {})
    return Server(run, {"spots": (source, more)}, environment=variables, **{"backend": "auto", **options})


def answer(run, server, expected):
    """One movie, with as many spots as it should have: the device that answered."""
    reply = localize(run, server)
    found = len(rows_of(reply))
    need(found == expected, f"{found} spots instead of {expected}")
    return reply.device()


@check("memory-taken", "another process fills the memory: the CPU answers until it goes", seconds=900)
def memory_taken(run):
    other = holder(run, "hold-memory", environment_of_own(run))
    server = serve(run)
    first = localize(run, server)
    expected = len(rows_of(first))
    need(first.device() == "cpu", f"answered by {first.device()!r} beside a process that has the memory")
    need(server.gpu()["state"] == "waiting", f"the GPU is {server.gpu()['state']}: {server.gpu().get('reason')}")
    print(server.gpu(), flush=True)
    asking = Asking(2, lambda: answer(run, server, expected))
    release(other)
    began = time.monotonic()
    server.until_gpu("serving")
    run.number("free_to_serving_s", time.monotonic() - began)
    until(lambda: any(device.startswith(("GPU-", "MIG-")) for _, _, device in asking.answers) or None, "the GPU has taken over")
    run.number("answers_beside_memory", asking.stop())
    server.stop()


@check("processors-busy", "another process keeps the processors busy: the CPU answers until it goes", seconds=900, where="gpu")
def processors_busy(run):
    if machine.nvml() is None:
        raise Skipped("without NVML nobody knows how busy a GPU is")
    other = holder(run, "hold-processors")
    until(lambda: machine.nvml().busy() > 90 or None, "NVML shows that the processors are busy", 30)
    server = serve(run)
    first = localize(run, server)
    expected = len(rows_of(first))
    need(first.device() == "cpu", f"answered by {first.device()!r} on a GPU that another process keeps busy")
    need(server.gpu()["state"] == "waiting", f"the GPU is {server.gpu()['state']}")
    asking = Asking(2, lambda: answer(run, server, expected))
    release(other)
    began = time.monotonic()
    server.until_gpu("serving")
    run.number("free_to_serving_s", time.monotonic() - began)
    run.number("answers_beside_processors", asking.stop())
    server.stop()


def hooked(run):
    """A file that, when it is there, has a kernel break the context of the first GPU; and the variables of a server to which that
    happens."""
    trigger = run.out / "fault-now"
    trigger.unlink(missing_ok=True)
    library = machine.carried("libfault.so", "GPU_CHECKS_FAULT")
    hook = {
        "LD_PRELOAD": str(library),
        "GPU_CHECKS_FAULT_FILE": str(trigger),
        "GPU_CHECKS_FAULT_KERNEL": str(machine.HERE / "illegal_address.ptx"),
    }
    return trigger, hook


def illegal_address(run, isolation):
    trigger, hook = hooked(run)
    server = serve(run, SHARED, hook, isolation=isolation, isolation_bytes="16MiB")
    server.until_gpu("serving")
    expected = len(rows_of(localize(run, server)))
    asking = Asking(4, lambda: answer(run, server, expected))
    until(lambda: len(asking.answers) > 3 or None, "answers")
    trigger.touch()
    until(lambda: not trigger.exists() or None, "the fault has happened")
    began = time.monotonic()
    until(lambda: server.gpu()["state"] != "serving" or None, "the fault is seen")
    after = until(
        lambda: next((done for sent, done, device in asking.answers if sent > began), None), "an answer after the fault"
    )
    run.number("fault_to_elsewhere_s", after - began)
    if isolation == "process":
        server.until_gpu("serving")
        run.number("fault_to_serving_s", time.monotonic() - began)
        run.number("answers_beside_fault", asking.stop())
        server.stop()
        return
    # In this process, NVIDIA promises nothing: what comes of it is a number.
    deadline = time.monotonic() + 30
    while server.gpu()["state"] != "serving" and time.monotonic() < deadline:
        time.sleep(0.05)
    back = server.gpu()["state"] == "serving"
    run.number("works_after_release", back)
    if back:
        run.number("fault_to_serving_s", time.monotonic() - began)
    run.number("answers_beside_fault", asking.stop())
    server.kill()


@check("illegal-address-thread", "a kernel breaks the context of a server: no request is lost", seconds=900)
def illegal_address_thread(run):
    illegal_address(run, "thread")


@check("illegal-address-process", "the same with the GPU in a process of its own, which is started anew", seconds=900)
def illegal_address_process(run):
    illegal_address(run, "process")


@check("two-gpus", "a kernel breaks the context of one of a server's two GPUs: no request is lost; does the other go on?", seconds=900)
def two_gpus(run):
    if machine.gpus() < 2 and not run.rehearsal:
        raise Skipped("there is one GPU, and this takes two")
    trigger, hook = hooked(run)
    two = {"FAKE_CUDA": "devices count=2 memory=2GiB context=100MiB"} if run.rehearsal else {}
    source = run.root() / "examples/models/spots"
    models = {f"spots-{gpu}": (source, f'\n[placement]\ndevices = "gpu:{gpu}"\n\n[batch]\nitems_max = 64\n') for gpu in (0, 1)}
    server = Server(run, models, environment=environment_of_own(run) | two | hook, backend="auto")
    until(lambda: [gpu["state"] for gpu in server.gpus()[:2]] == ["serving"] * 2 or None, "both GPUs serve")
    other = server.gpus()[1]["id"]

    def asked(model):
        reply = localize(run, server, model=model)
        return len(rows_of(reply)), reply.device()

    expected, first = asked("spots-1")
    need(first == other, f"answered by {first!r}, not by {other!r}")

    def answered(model):
        found, device = asked(model)
        need(found == expected, f"{model}: {found} spots instead of {expected}")
        return device

    asking = [Asking(2, lambda model=model: answered(model)) for model in models]
    until(lambda: all(len(one.answers) > 3 for one in asking) or None, "answers")
    trigger.touch()
    until(lambda: not trigger.exists() or None, "the fault has happened")
    began = time.monotonic()
    until(lambda: server.gpus()[0]["state"] != "serving" or None, "the fault is seen")

    def after(one):
        return [device for sent, _, device in one.answers if sent > began]

    until(lambda: all(len(after(one)) > 9 for one in asking) or None, "answers after the fault")
    devices = set(after(asking[1]))
    print(devices, flush=True)
    run.number("other_gpu_goes_on", devices == {other})
    run.number("answers_beside_fault", sum(one.stop() for one in asking))
    server.kill()


# A look takes little, and is one of two a second.
LOOKED_AT = 30


@check("look-cost", "the processor time of the thread that looks at GPUs through NVML", seconds=300, where="rehearsed")
def look_cost(run):
    if machine.nvml() is None:
        raise Skipped("without NVML nobody looks")
    server = serve(run)
    server.until_gpu("serving")
    used, began = server.seconds_of("gpu-sampler"), time.monotonic()
    time.sleep(1 if run.rehearsal else LOOKED_AT)
    run.number("look_of_core", (server.seconds_of("gpu-sampler") - used) / (time.monotonic() - began))
    server.stop()


@check("kill", "kill -9 of a busy server: nothing stays on the GPU, and its successor serves", seconds=900)
def kill(run):
    before = in_use(run)
    for isolation in ("thread", "process"):
        server = serve(run, isolation=isolation, isolation_bytes="16MiB")
        server.until_gpu("serving")
        expected = len(rows_of(localize(run, server)))
        asking = Asking(2, lambda server=server, expected=expected: answer(run, server, expected))
        until(lambda asking=asking: len(asking.answers) > 1 or None, "answers")
        children = server.children()
        need(len(children) == (isolation == "process"), f"{isolation}: {len(children)} processes beside the server")
        # Those that are under way are lost with it; they are not counted.
        asking.stopping.set()
        server.kill()
        began = time.monotonic()
        asking.wrong.clear()
        until(lambda children=children: not any(runs(child) for child in children) or None, "the processes of the GPU are gone")
        successor = serve(run, name="successor", isolation=isolation, isolation_bytes="16MiB")
        successor.until_gpu("serving")
        run.number("kill_to_serving_s", time.monotonic() - began)
        need(answer(run, successor, expected), "no answer")
        successor.stop()
    if before is not None:
        until(lambda: in_use(run) < before + (64 << 20) or None, "the GPU's memory is back", 30)
        run.number("memory_left_bytes", max(0, in_use(run) - before))


def runs(process):
    """Whether it is there, and no zombie."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False
