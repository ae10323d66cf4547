"""The live view's cards of devices, in a headless Chromium, of a real server on a machine with fake GPUs.

One GPU is free, one is held by another process, one fails at whatever it computes.
"""

import io
import re
import shutil
from collections import Counter

import numpy as np
import pytest
import requests
import tifffile
import wire
from browser import chromium, violations
from fakes import Machine
from server import ROOT, until

GIB = 1 << 30
FREE, HELD, SICK = (f"GPU-fa000000-0000-0000-0000-00000000000{number}" for number in (1, 2, 3))
SCRIPT = "devices name=Lateral memory=8GiB | name=Median memory=8GiB | name=Frontal memory=8GiB;" + (
    "fault on=kernel device=2 times=always code=719"
)
READINGS = "set gpu=0 utilization=37 temperature=54 power_mw=181500;set gpu=1 utilization=98 temperature=71 power_mw=240000"


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(tmp_path_factory.mktemp("machine") / "shared", SCRIPT, READINGS)


@pytest.fixture(scope="module")
def tenant(machine):
    """Another process on the second GPU."""
    process = machine.tenant(1, 7 * GIB)
    yield process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def site(machine, tenant, start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spots")
    shutil.copytree(ROOT / "examples" / "models" / "spots", folder / "spots")
    server = start_server(folder, environment=machine.environment, backend="auto")
    wanted = {FREE: "serving", HELD: "waiting", SICK: "fenced"}
    until(lambda: {id: told(server)[id]["state"] for id in wanted} == wanted, 60, "the GPUs are found as they are")
    yield server
    assert server.stop() == 0


@pytest.fixture
def watch(visit):
    """Opens the view of the GPUs."""

    def open_window(**options):
        window = visit("/#live", **options)
        window.page.wait_for_selector(f"[data-device='{FREE}']")
        return window

    return open_window


@pytest.fixture(scope="module")
def movie():
    """A few frames: what runs kernels in place of a GPU is slow."""
    file = io.BytesIO()
    np.save(file, tifffile.imread(ROOT / "examples" / "images" / "spots.tif")[:8])
    return file.getvalue()


def told(site):
    """What the API says of each device."""
    listed = requests.get(f"{site.url}/v2/devices", timeout=wire.TIMEOUT).json()["devices"]
    return {device["id"]: device for device in listed}


def control(site, id, act):
    """Has a device left alone, or taken again."""
    reply = requests.post(f"{site.url}/v2/devices/{id}/{act}", timeout=wire.TIMEOUT)
    assert reply.status_code == 200, reply.text


def shows(page, id, text):
    """Waits until a card has this text in it."""
    page.wait_for_function(
        "([id, text]) => document.querySelector(`[data-device='${id}']`)?.innerText.includes(text)", arg=[id, text]
    )


def computed_on(site, movie):
    """How many fits each device has made, once a stack was fitted."""
    reply = requests.post(f"{site.url}/predictions/spots?format=csv", data=movie, timeout=wire.TIMEOUT)
    assert reply.status_code == 200, reply.text
    text = requests.get(f"{site.url}/metrics", timeout=wire.TIMEOUT).text
    counted = re.finditer(r'ocelli_items_total\{device="([^"]+)",model="spots"\} (\S+)', text)
    return Counter({m[1]: float(m[2]) for m in counted})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_gpu_is_shown_in_its_state_with_the_reason_and_its_readings(watch, site, scheme):
    window = watch(color_scheme=scheme)
    page = window.page
    for id, parts in {
        FREE: ("Lateral", "serving", "a forward pass works", "of 8 GiB", "MiB ours", "37 %", "182 W", "54 °C"),
        HELD: ("Median", "waiting", "other processes compute on it", "7 GiB of 8 GiB", "98 %", "240 W", "1 other process", "needs"),
        SICK: ("Frontal", "fenced", "CUDA_ERROR_LAUNCH_FAILED"),
        "cpu": ("serving", "a forward pass works"),
    }.items():
        for part in parts:
            shows(page, id, part)
    full = page.evaluate(
        "id => document.querySelector(`[data-device='${id}'] .meter .part.other`).getBoundingClientRect().width"
        " / document.querySelector(`[data-device='${id}'] .meter .track`).getBoundingClientRect().width",
        HELD,
    )
    assert full == pytest.approx(7 / 8, abs=0.01), "a bar is as long as what is held"
    assert violations(page, "devices") == []
    window.shot(f"gpus-{scheme}")


def test_a_gpu_is_drained_and_resumed_by_its_button_and_with_the_keyboard(watch, site, movie):
    window = watch()
    page = window.page
    before = computed_on(site, movie)[FREE]
    page.locator(f"[data-control='drain {FREE}']").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#devices-says').textContent.includes('Lateral finishes what it has begun')")
    page.wait_for_selector(f"[data-control='resume {FREE}']:focus")
    until(lambda: told(site)[FREE]["drained"] and told(site)[FREE]["state"] == "fenced", 60, "the GPU is left alone")
    shows(page, FREE, "drained")
    counted = computed_on(site, movie)
    assert counted[FREE] == before and counted["cpu"] > 0, "the CPU stands in"
    window.shot("gpus-drained")

    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#devices-says').textContent.includes('Lateral may be used again')")
    shows(page, FREE, "serving")
    assert not told(site)[FREE]["drained"]
    # What runs kernels in place of a GPU is slower than the CPU, which would have all the work for a minute.
    control(site, "cpu", "drain")
    until(lambda: told(site)["cpu"]["state"] == "fenced", 60, "the CPU is left alone")
    before = computed_on(site, movie)[FREE]
    assert computed_on(site, movie)[FREE] > before, "the GPU is used again"
    control(site, "cpu", "resume")
    until(lambda: told(site)["cpu"]["state"] == "serving", 60, "the CPU stands in again")


def test_a_telephone_shows_gpus(watch):
    window = watch(viewport={"width": 390, "height": 844}, device_scale_factor=2)
    assert window.page.evaluate("document.documentElement.scrollWidth") <= 390
    window.shot("telephone-gpus")


# Last, since nobody takes the memory again.
def test_a_gpu_that_another_process_leaves_is_seen_to_serve(watch, site, tenant):
    page = watch().page
    shows(page, HELD, "waiting")
    tenant.kill()
    tenant.wait()
    shows(page, HELD, "serving")
    assert told(site)[HELD]["state"] == "serving"
