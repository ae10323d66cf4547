"""The images, built and run by Docker, and the file for Docker Compose, started: `make test-docker`.

Not a part of `make test`: it takes an engine, a registry for the base images, gigabytes for CUDA's libraries, and half an hour.
Compose takes the ports of its file on 127.0.0.1.
"""

import json
import subprocess
from contextlib import contextmanager

import pytest
import requests
import yaml
from common import DEPLOY, ROOT, run
from server import until
from test_compose import FILE, SERVICES

IMAGES = {"cpu": "ocelli:latest", "cuda": "ocelli:cuda"}
PICTURE = ROOT / "examples" / "images" / "digits" / "3-0.png"
# As docs/operations.md says, and no right at all.
HARDENED = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
STARTED_SECONDS_MAX = 300
BUILT_SECONDS_MAX = 5400


def docker(*words, seconds_max=STARTED_SECONDS_MAX):
    """What Docker prints, on both outputs: the log of a container comes on both."""
    done = subprocess.run(
        ["docker", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds_max, cwd=ROOT
    )
    assert done.returncode == 0, f"docker {words} ended with {done.returncode}:\n{done.stdout[-8000:]}"
    return done.stdout


def inspect(name, what):
    return docker("inspect", "--format", f"{{{{{what}}}}}", name).strip()


def healthy(name):
    until(lambda: inspect(name, ".State.Health.Status") == "healthy", STARTED_SECONDS_MAX, f"{name} is healthy")


def classified(address):
    """The server's first guess of what the picture shows."""
    reply = requests.post(f"http://{address}/predictions/digits", data=PICTURE.read_bytes(), timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()["classes"][0]["label"]


@pytest.fixture(scope="module", params=IMAGES)
def image(request):
    commit = run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    docker(
        *("build", "--target", request.param, "--tag", IMAGES[request.param], "--build-arg", f"REVISION={commit}", "."),
        seconds_max=BUILT_SECONDS_MAX,
    )
    return IMAGES[request.param]


@contextmanager
def container(image, *options):
    """The name of one that runs, and that must end in order when it is stopped as docs/operations.md says."""
    name = docker("run", "--detach", "--publish", "127.0.0.1::8000", *options, image).strip()
    try:
        yield name
        docker("stop", "-t", "35", name)
        assert inspect(name, ".State.ExitCode") == "0", docker("logs", name)
    finally:
        docker("rm", "--force", name)


@pytest.mark.parametrize("options", [[], HARDENED], ids=["plain", "hardened"])
def test_an_image_serves_the_examples_and_ends_in_order(image, options):
    with container(image, *options) as name:
        healthy(name)
        assert classified(docker("port", name, "8000").strip()) == "3"
        assert docker("exec", name, "id", "-u").strip() == "10001"
        # Without a GPU both images serve on the CPU.
        devices = docker("exec", name, "ocelli", "devices", "--url", "http://127.0.0.1:8000")
        assert any(line.startswith("cpu ") and " serving " in line for line in devices.splitlines()), devices
        said = [json.loads(line) for line in docker("logs", name).splitlines()]
        assert [line for line in said if line["level"] == "ERROR"] == []


def test_an_image_says_what_it_is(image):
    labels = json.loads(inspect(image, "json .Config.Labels"))
    version = docker("run", "--rm", image, "--version")
    commit = labels["org.opencontainers.image.revision"]
    assert labels["org.opencontainers.image.version"] in version and commit[:7] in version and len(commit) == 40


@pytest.fixture(scope="module")
def services():
    """Those of the file for Compose whose images can be had; they run. The server's is the one that was built here, whoever
    else has one of that name."""
    compose = ("compose", "--file", FILE)
    there = ["ocelli"]
    for name in set(SERVICES) - {"ocelli"}:
        wanted = SERVICES[name]["image"]
        local = subprocess.run(["docker", "image", "inspect", wanted], capture_output=True, timeout=60).returncode == 0
        if local or subprocess.run(["docker", "pull", wanted], timeout=BUILT_SECONDS_MAX).returncode == 0:
            there.append(name)
    try:
        docker(*compose, "up", "--detach", "--pull", "never", *there)
        yield there
    finally:
        docker(*compose, "down", "--volumes")


def answer(url, parameters=()):
    """The JSON that is there, or nothing: programs that start refuse connections first, and then say 503."""
    try:
        reply = requests.get(url, params=dict(parameters), timeout=30)
    except requests.ConnectionError:
        return None
    return reply.json() if reply.ok else None


@pytest.mark.usefixtures("services")
def test_compose_starts_a_server_that_answers():
    assert classified("127.0.0.1:8000") == "3"


def test_prometheus_of_compose_scrapes_the_server_and_has_the_rules(services):
    if "prometheus" not in services:
        pytest.skip("the image of Prometheus cannot be had: it was NOT started")

    def asked(path, **parameters):
        return answer(f"http://127.0.0.1:9090/api/v1/{path}", parameters)["data"]

    def scraped():
        found = answer("http://127.0.0.1:9090/api/v1/targets") or {"data": {"activeTargets": []}}
        return [one["scrapeUrl"] for one in found["data"]["activeTargets"] if one["health"] == "up"] or None

    assert until(scraped, 120, "Prometheus has scraped the server") == ["http://ocelli:8003/metrics"]
    assert len(asked("query", query='ocelli_build_info{job="ocelli"}')["result"]) == 1
    shipped = yaml.safe_load((DEPLOY / "prometheus" / "ocelli.rules.yml").read_text())["groups"]
    rules = {group["name"]: len(group["rules"]) for group in asked("rules")["groups"]}
    assert rules == {group["name"]: len(group["rules"]) for group in shipped}


def test_grafana_of_compose_shows_the_dashboard_and_reaches_prometheus(services):
    if "grafana" not in services:
        pytest.skip("the image of Grafana cannot be had: it was NOT started")

    def asked(path, **parameters):
        return answer(f"http://127.0.0.1:3000/api/{path}", parameters)

    shipped = json.loads((DEPLOY / "grafana" / "ocelli.json").read_text())
    found = until(lambda: asked(f"dashboards/uid/{shipped['uid']}"), 120, "Grafana has the dashboard")
    assert found["dashboard"]["title"] == shipped["title"] and len(found["dashboard"]["panels"]) == len(shipped["panels"])
    reached = until(
        lambda: asked("datasources/proxy/uid/prometheus/api/v1/query", query="ocelli_build_info"), 60, "Grafana asks Prometheus"
    )
    assert reached["status"] == "success"
