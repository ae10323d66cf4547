"""A real Prometheus that scrapes live servers under load: what it makes of the metrics, and what every query of the
dashboard and of the autoscalers gives. One server runs on the CPU, one on a GPU that is a fake."""

import json
import re
import shutil
import subprocess
import sys
import time

import common
import pytest
import requests
import yaml
from common import DEPLOY, ROOT, tool
from load import Load
from server import BINARY, Server, free_ports, until
from test_prometheus import metrics, named

sys.path.insert(0, str(DEPLOY / "grafana"))
import make_dashboard  # noqa: E402

SCRAPES = 12  # a second apart
# What the fake GPU tells of itself. Its address on the bus, and so its UUID, is the same in both libraries.
GPU = {
    "FAKE_CUDA": "devices count=1",
    "FAKE_NVML": "gpus follow;set gpu=0 utilization=40 temperature=61 power_mw=250000 energy_mj=9000000 ecc_uncorrected=0",
}
# Panels that stay empty on a server that is well: their queries are run, and their metrics are those of docs/metrics.md.
QUIET = {
    "Xid errors", "Batches that failed", "Jobs that were run again", "Answered by a stand-in", "Largest batch", "Work dropped at the end",
}  # fmt: skip
DASHBOARD = json.loads((DEPLOY / "grafana" / "ocelli.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
# Longer ago than anything that happens here.
SINCE_SECONDS = 1800


class Prometheus:
    """One that scrapes servers each second, with the shipped rules."""

    def __init__(self, folder, servers):
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        for name in config["rule_files"]:
            rules = (DEPLOY / "prometheus" / name).read_text()
            (folder / name).write_text(rules.replace("    interval: 30s\n", ""))
        (job,) = config["scrape_configs"]
        # Labels as the operator adds them.
        job["static_configs"] = [
            {"targets": [f"127.0.0.1:{one.port}"], "labels": {"namespace": "vision", "pod": f"ocelli-{i}"}}
            for i, one in enumerate(servers)
        ]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.log = folder / "log"
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                [
                    tool("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder,
            )

    def get(self, path, **parameters):
        answer = requests.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30).json()
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        return answer["data"]

    def samples(self, expression, seconds=6):
        """The numbers that a query gives over the last seconds."""
        now = time.time()
        found = self.get("query_range", query=expression, start=now - seconds, end=now, step=1)["result"]
        return [float(value) for series in found for _, value in series["values"] if value != "NaN"]

    def scrapes(self):
        try:
            return sum(self.samples("count_over_time(ocelli_build_info[10m])", 0))
        except requests.RequestException:
            assert self.process.poll() is None, self.log.read_text()
            return 0


def started(log, models, **options):
    tool("prometheus")
    server = Server(models, log, **options)
    try:
        yield server.wait_ready()
        assert server.stop() == 0
    finally:
        server.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from started(tmp_path_factory.mktemp("server") / "log", ROOT / "examples" / "models")


@pytest.fixture(scope="module")
def gpu_server(tmp_path_factory):
    """One whose driver and NVML are the tests' fakes; None where the fake driver is missing. `cargo test --test cuda` makes it."""
    # The name that is kept for others than those tests: there are drivers for sanitizers beside it.
    driver = BINARY.parent / "fakes" / "fake_cuda"
    if not (driver / "libcuda.so.1").exists() or not shutil.which("c++"):
        assert "cuda" not in common.PROMISED
        yield None
        return
    folder = tmp_path_factory.mktemp("gpu-server")
    sources = sorted((ROOT / "tests" / "fake_nvml").glob("*.cpp"))
    common.run("c++", "-std=gnu++17", "-shared", "-fPIC", "-pthread", "-o", folder / "libnvidia-ml.so.1", *sources, "-ldl")
    shutil.copytree(ROOT / "examples" / "models" / "spots", folder / "models" / "spots")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in GPU.items():
            patch.setenv(name, value)
        patch.setenv("LD_LIBRARY_PATH", f"{driver}:{folder}")
        yield from started(folder / "log", folder / "models", backend="gpu", gpu_queue_folder="")


@pytest.fixture(scope="module")
def prometheus(server, gpu_server, tmp_path_factory):
    """Has seen servers at work."""
    servers = [server, gpu_server] if gpu_server else [server]
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), servers)
    load = None
    try:
        until(lambda: prometheus.scrapes() >= 2 * len(servers), 60, "Prometheus has scraped the servers")
        load = Load(server.port, callers=3, rate=60)
        movie = (ROOT / "examples" / "images" / "spots.tif").read_bytes()
        # The fake runs one lane at a time: a few spots are work enough.
        rois = {"name": "rois", "shape": [4, 7, 7], "datatype": "FP32", "data": [200.0] * 24 + [900.0] + [200.0] * 171}
        wanted = prometheus.scrapes() + SCRAPES * len(servers)
        while prometheus.scrapes() < wanted:
            assert requests.post(f"{server.url}/predictions/spots?format=csv", data=movie, timeout=60).status_code == 200
            assert requests.post(f"{server.url}/predictions/digits", data=b"no image", timeout=60).status_code == 400
            if gpu_server:
                answer = requests.post(f"{gpu_server.url}/v2/models/spots/infer", json={"inputs": [rois]}, timeout=60)
                assert answer.status_code == 200, answer.text
        yield prometheus
        assert not load.end().lost, load.lost[:5]
    finally:
        if load:
            load.ended.set()
        prometheus.process.terminate()
        prometheus.process.wait(timeout=30)


def filled(expression):
    """A query with what Grafana puts in for variables."""
    expression = expression.replace("$__rate_interval", "5s")
    for name in VARIABLES:
        expression = re.sub(rf"\${name}\b", ".*", expression)
    assert "$" not in expression, f"{expression}: a variable that the dashboard does not have"
    return expression


def test_the_dashboard_is_what_its_script_writes():
    assert (DEPLOY / "grafana" / "ocelli.json").read_text() == make_dashboard.text(), (
        "python3 deploy/grafana/make_dashboard.py writes it anew"
    )


def test_panels_have_a_unit_and_do_not_overlap():
    taken = set()
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["unit"] and panel["targets"], panel["title"]
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_a_scrape_passes_promtool(server):
    text = requests.get(f"{server.url}/metrics", timeout=10).text
    check = [tool("promtool"), "check", "metrics"]
    done = subprocess.run(check, input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_shows_something(prometheus, gpu_server, panel):
    about_gpus = any("ocelli_device_" in target["expr"] and "ocelli_device_state" not in target["expr"] for target in panel["targets"])
    for target in panel["targets"]:
        expression = filled(target["expr"])
        # The GPU's share of the work was done before the first panel was asked for.
        found = prometheus.samples(expression, SINCE_SECONDS)
        if not found and about_gpus and gpu_server is None:
            pytest.skip(f"the fake GPU driver is missing (cargo test --test cuda makes it): {panel['title']} is not looked at")
        assert found or panel["title"] in QUIET, f"nothing comes of {expression}"


def test_what_happened_once_is_shown(prometheus):
    """A device comes to serve once, and is counted from then on."""
    (panel,) = [panel for panel in PANELS if panel["title"] == "Changes of state"]
    assert max(prometheus.samples(filled(panel["targets"][0]["expr"]))) == 1


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_asks_for_metrics_that_exist(panel):
    for target in panel["targets"]:
        unknown = named(filled(target["expr"])) - metrics()
        assert not unknown, f"{panel['title']} asks for {unknown}"


def test_every_metric_of_ours_is_in_a_panel():
    asked = {name for panel in PANELS for target in panel["targets"] for name in named(filled(target["expr"]))}
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in asked}
    # Triton's names are there for dashboards that others have.
    missed = {name for name in metrics() - asked if name.startswith("ocelli_")}
    assert not {name for name in missed if re.sub("_(bucket|sum|count)$", "", name) not in families}


@pytest.mark.parametrize("name", [name for name in VARIABLES if name != "datasource"])
def test_every_variable_has_values(prometheus, name):
    series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", VARIABLES[name]["query"]["query"]).groups()
    found = prometheus.get("series", **{"match[]": filled(series)})
    assert {one[label] for one in found}


def test_annotations_can_be_asked_for(prometheus):
    for annotation in DASHBOARD["annotations"]["list"]:
        prometheus.samples(filled(annotation["expr"]))


def test_what_autoscalers_ask_for_has_one_answer(prometheus):
    values = yaml.safe_load((DEPLOY / "kubernetes/components/hpa/prometheus-adapter.yaml").read_text())
    queries = []
    for rule in values["rules"]["custom"]:
        found = {(one["namespace"], one["pod"]) for one in prometheus.get("series", **{"match[]": rule["seriesQuery"]})}
        assert ("vision", "ocelli-0") in found
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="vision",pod=~"ocelli-0"')
        queries.append(query.replace("<<.GroupBy>>", "pod"))
    (scaler,) = common.documents((DEPLOY / "kubernetes/components/keda/scaler.yaml").read_text())
    queries += [trigger["metadata"]["query"] for trigger in scaler["spec"]["triggers"]]
    # Everybody waited, nobody for longer than a request may take; three callers are there, and there were four, each with one at a time.
    bounds_of = {"ocelli_stage_duration_seconds": (1e-9, 30), "ocelli_queue_items": (0, 3), "ocelli_decode_jobs": (0, 4)}
    for query in queries:
        # Nothing comes of it for a moment where the last scrape was late.
        (result,) = until(lambda: prometheus.get("query", query=query)["result"], 60, f"something comes of {query}")
        (low, high), *others = (bounds for name, bounds in bounds_of.items() if name in query)
        assert not others and low <= float(result["value"][1]) <= high, (query, result)


def test_rules_run_and_nothing_fires_on_a_server_that_is_well(prometheus):
    groups = prometheus.get("rules")["groups"]
    assert sum(len(group["rules"]) for group in groups) > 30
    for group in groups:
        for rule in group["rules"]:
            assert rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}"
    # Images that are none are their senders' fault. That requests took longer than they have is a fault only of a server that had a
    # machine to itself; here others may want it too.
    routes = re.search(r'route=~"[^"]+"', (DEPLOY / "prometheus" / "ocelli.rules.yml").read_text())[0]
    took = "ocelli_http_request_duration_seconds"
    slow = prometheus.get("query", query=f'sum({took}_count{{{routes}}}) - sum({took}_bucket{{{routes},le=~"1([.]0)?"}}) > 0')["result"]

    def alerts():
        found = [(alert["labels"]["alertname"], alert["state"]) for alert in prometheus.get("alerts")["alerts"]]
        return [alert for alert in found if not (slow and alert[0].startswith("OcelliLatency"))]

    # Where a scrape was late, the server counts as down until the next one; what is the matter with a server stays.
    assert all(state == "pending" for _, state in alerts()), alerts()
    until(lambda: not alerts(), 60, "no alert is pending")
