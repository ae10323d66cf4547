"""Two servers and one GPU that has room for one of them: who holds it when, and which device answers."""

import threading
import time

from examples import localize, rows_of
from registry import Failed, check, need
from served import Server, environment_of_own, holder, release

ANYWHERE = '\n[placement]\ndevices = "gpu"\nfallback = "cpu"\n'
COLUMN = 0.5
LENGTH = 40
# When requests come, one after the other, s: while one server is busy the other begins to be, and has the GPU later.
BUSY = {"one": ((0, 10), (18, 34)), "two": ((4, 24), (36, LENGTH))}


def serve(run, name):
    source = run.root() / "examples/models/spots"
    variables = environment_of_own(run)
    # What one has measured is known to the next.
    folders = {"gpu_queue_folder": run.out / "queue", "gpu_state_folder": run.out / "state"}
    options = {"backend": "auto", "idle_release_ms": 1500, **folders}
    return Server(run, {"spots": (source, ANYWHERE)}, name=name, environment=variables, **options)


class Row:
    """One server, column by column."""

    def __init__(self):
        self.held, self.by_gpu, self.by_cpu = set(), set(), set()

    def drawn(self):
        columns = range(int(LENGTH / COLUMN))
        answers = {(True, False): "G", (False, True): "c", (True, True): "x", (False, False): " "}
        held = "".join("#" if column in self.held else " " for column in columns)
        return held, "".join(answers[column in self.by_gpu, column in self.by_cpu] for column in columns)


@check("two-servers", "two servers want a GPU that has room for one: each has it as long as it has work", seconds=300, where="gpu")
def two_servers(run):
    # What is needed is guessed the first time, and measured then.
    for _ in range(2):
        alone = serve(run, "alone")
        alone.until_gpu("serving")
        expected = len(rows_of(localize(run, alone)))
        needed = alone.gpu()["memory"]["needed_bytes"]
        alone.stop()
    # A little more: what is measured when a model is loaded differs from time to time.
    other = holder(run, "hold-memory", environment_of_own(run) | {"GPU_CHECKS_LEAVE_BYTES": str(needed + needed // 20)})
    servers = {name: serve(run, name) for name in BUSY}
    rows, wrong, handed = {name: Row() for name in BUSY}, [], []
    began, answers = time.monotonic(), dict.fromkeys(BUSY, 0)

    def column():
        return int((time.monotonic() - began) / COLUMN)

    def send(name):
        try:
            while (second := time.monotonic() - began) < LENGTH:
                if not any(start <= second < end for start, end in BUSY[name]):
                    time.sleep(0.02)
                    continue
                reply = localize(run, servers[name])
                found = len(rows_of(reply))
                need(found == expected, f"{found} spots instead of {expected}")
                row = rows[name]
                (row.by_cpu if reply.device() == "cpu" else row.by_gpu).add(column())
                answers[name] += 1
        except Exception as failed:  # told by whoever started this thread
            wrong.append(failed)

    threads = [threading.Thread(target=send, args=(name,)) for name in BUSY]
    for thread in threads:
        thread.start()
    last, left = None, None
    while time.monotonic() - began < LENGTH:
        holding = [name for name in BUSY if servers[name].gpu()["state"] == "serving"]
        for name in holding:
            rows[name].held.add(column())
        if len(holding) > 1:
            wrong.append(Failed(f"both hold a GPU that has room for one: {[server.gpu() for server in servers.values()]}"))
            break
        if last and not holding:
            left = left or time.monotonic()
        if holding and left and holding[0] != last:
            handed.append(time.monotonic() - left)
        if holding:
            last, left = holding[0], None
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    scale = "".join(f"{second:<10}" for second in range(0, LENGTH, 5))
    print(f"      s  {scale}")
    for name, row in rows.items():
        held, answered = row.drawn()
        print(f"{name} holds   |{held}\n{name} answers |{answered}", flush=True)
    if wrong:
        raise Failed(str(wrong[0]))
    for name, row in rows.items():
        need(row.by_gpu and row.by_cpu, f"server {name} was to be answered by both devices")
    need(handed, "the GPU was never handed over")
    run.number("answers_of_two_servers", sum(answers.values()))
    run.number("handed_over_s", max(handed))
    release(other)
    for server in servers.values():
        server.stop()
