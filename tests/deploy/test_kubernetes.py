"""The manifests for Kubernetes: the API would take them, and what they say agrees with the server and among itself."""

import os
import re
import shutil
import urllib.parse

import common
import kubernetes
import pytest
import test_prometheus as prometheus
import yaml
from common import DEPLOY, ROOT
from kubernetes import of_kind, only, rendered

OVERLAYS = sorted(path.name for path in (DEPLOY / "kubernetes" / "overlays").iterdir())
OPTIONS = common.Options()
PATHS = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]


@pytest.fixture(params=["base", *(f"overlays/{name}" for name in OVERLAYS)])
def objects(request):
    return rendered(DEPLOY / "kubernetes" / request.param)


def pod(objects):
    return only(objects, "Deployment")["spec"]["template"]["spec"]


def container(objects):
    (found,) = pod(objects)["containers"]
    return found


def options(objects):
    """The server's options in a replica."""
    found = container(objects)
    (reference,) = found["envFrom"]
    name = reference["configMapRef"]["name"]
    (variables,) = [m["data"] for m in of_kind(objects, "ConfigMap") if m["metadata"]["name"] == name]
    for variable in found["env"]:
        assert variable["name"] in OPTIONS.variables
    assert found["args"][0] == "serve"
    return OPTIONS.given(found["args"][1:], variables)


def ports(found):
    return {entry["name"]: entry["containerPort"] for entry in found["ports"]}


def test_the_api_takes_every_object(objects):
    for found in objects:
        kubernetes.validate(found)


def test_probes_ask_for_paths_that_exist_where_the_admin_listener_is(objects):
    found = container(objects)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = found[probe]["httpGet"]
        assert "get" in PATHS[asked["path"]]
        assert ports(found)[asked["port"]] == common.port(options(objects)["admin_listen"])
    assert found["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert found["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"


def test_ports_are_those_that_the_server_listens_on(objects):
    given = options(objects)
    names = {"http": "listen", "grpc": "grpc_listen", "admin": "admin_listen", "metrics": "metrics_listen"}
    assert ports(container(objects)) == {name: common.port(given[option]) for name, option in names.items()}
    for option in names.values():
        assert given[option].startswith("0.0.0.0:"), f"{option} cannot be reached from outside of the pod"
    targets = {entry["targetPort"] for entry in only(objects, "Service")["spec"]["ports"]}
    assert targets == {"http", "grpc", "metrics"}, "the admin listener is no service"


def test_there_is_time_to_drain(objects):
    spec, given = pod(objects), options(objects)
    stop = container(objects)["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = (int(given["drain_delay_ms"]) + int(given["drain_timeout_ms"])) / 1000
    assert spec["terminationGracePeriodSeconds"] >= stop + drain + 5
    ready = container(objects)["readinessProbe"]
    seen = ready["failureThreshold"] * ready["periodSeconds"]
    assert int(given["drain_delay_ms"]) / 1000 > seen, "a drain is over before readiness was asked for"


def test_replicas_run_without_rights_on_a_root_that_they_cannot_write(objects):
    spec = pod(objects)
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    assert spec["automountServiceAccountToken"] is False
    # A service called ocelli would set OCELLI_PORT.
    assert spec["enableServiceLinks"] is False
    for found in [*spec["containers"], *spec.get("initContainers", [])]:
        security = found["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        for mount in found["volumeMounts"]:
            assert mount["name"] in {volume["name"] for volume in spec["volumes"]}
        assert ":" in found["image"] and not found["image"].endswith(":latest")


def test_what_the_server_may_hold_fits_into_its_memory(objects):
    given, limit = options(objects), common.size(container(objects)["resources"]["limits"]["memory"])
    held = sum(common.size(given[name]) for name in ("in_flight_bytes_max", "decode_bytes_max", "queue_bytes_max"))
    assert held + (1 << 30) <= limit, f"{held} bytes of requests and 1 GiB of models do not fit into {limit}"


def test_what_the_server_may_write_fits_into_its_volume(objects):
    given = options(objects)
    (tmp,) = [volume for volume in pod(objects)["volumes"] if volume["name"] == "tmp"]
    assert common.size(given["stack_spill_bytes_max"]) < common.size(tmp["emptyDir"]["sizeLimit"])
    written = sum(
        common.size(volume["emptyDir"]["sizeLimit"]) for volume in pod(objects)["volumes"] if "emptyDir" in volume
    )
    assert written <= common.size(container(objects)["resources"]["limits"]["ephemeral-storage"])


def test_models_from_an_image_are_checked_before_they_are_served_and_their_disk_is_asked_for():
    objects = rendered(DEPLOY / "kubernetes" / "overlays" / "cpu")
    copy, check = pod(objects)["initContainers"]
    assert copy["volumeMounts"][0]["name"] == "models" and copy["command"][0] == "cp"
    assert check["image"] == container(objects)["image"], "what checks is what serves"
    assert check["args"][0] == "check"
    given = OPTIONS.given(check["args"][1:])
    assert (given["models"], given["backend"]) == (options(objects)["models"], "cpu")
    asked = container(objects)["resources"]
    for name in ("cpu", "memory"):
        # More would be more than the pod needs later.
        assert common.size(check["resources"]["requests"][name]) <= common.size(asked["requests"][name])
    assert asked["requests"]["ephemeral-storage"] == asked["limits"]["ephemeral-storage"]


def test_the_check_of_a_claim_that_the_manual_shows_is_one_that_the_api_takes(tmp_path):
    text = (ROOT / "docs" / "operations.md").read_text()
    (shown,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "name: check" in block]
    resources = {"resources": [os.path.relpath(DEPLOY / "kubernetes" / "overlays" / "gpu", tmp_path)]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(resources | yaml.safe_load(shown)))
    objects = rendered(tmp_path)
    for found in objects:
        kubernetes.validate(found)
    test_replicas_run_without_rights_on_a_root_that_they_cannot_write(objects)
    (check,) = pod(objects)["initContainers"]
    assert check["image"] == container(objects)["image"]
    assert OPTIONS.given(check["args"][1:])["models"] == "/models"


def test_selectors_find_the_replicas(objects):
    labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    chosen = [
        only(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        only(objects, "Service")["spec"]["selector"],
        only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in chosen:
        assert selector and selector.items() <= labels
    for monitor in of_kind(objects, "ServiceMonitor"):
        service = only(objects, "Service")
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        for endpoint in monitor["spec"]["endpoints"]:
            assert endpoint["port"] in {entry["name"] for entry in service["spec"]["ports"]}
            assert "get" in PATHS[endpoint["path"]]


def test_only_the_api_and_metrics_are_let_in_and_nothing_out(objects):
    spec = only(objects, "NetworkPolicy")["spec"]
    assert sorted(spec["policyTypes"]) == ["Egress", "Ingress"] and not spec.get("egress")
    let_in = {entry["port"] for rule in spec["ingress"] for entry in rule["ports"]}
    assert let_in == {"http", "grpc", "metrics"}
    assert all(rule["from"] for rule in spec["ingress"])


def with_component(folder, name):
    """The overlay for GPUs and one more component: their objects, which the API takes."""

    def there(what):
        return os.path.relpath(DEPLOY / "kubernetes" / what, folder)

    kustomization = {"resources": [there("overlays/gpu")], "components": [there(f"components/{name}")]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    objects = rendered(folder)
    for found in objects:
        kubernetes.validate(found)
    return objects


# What is for those who run the server.
CONTROL = ("/metrics", "/v2/repository", "/v2/systemsharedmemory", "/v2/cudasharedmemory", "/v2/devices", "/v2/logging")
# The server's own page, which shows and does what these do.
PAGE = ("/", "/docs", "/docs/{manual}", "/page/{file}")


def test_a_gateway_brings_callers_to_all_that_answers_them_and_to_nothing_that_controls_the_server(tmp_path):
    objects = with_component(tmp_path, "gateway")
    (rule,) = only(objects, "HTTPRoute")["spec"]["rules"]
    paths = [match["path"] for match in rule["matches"]]

    def is_let_through(path):
        below = [kind["value"] for kind in paths if kind["type"] == "PathPrefix"]
        return any(path == one or path.startswith(f"{one}/") for one in below) or {"type": "Exact", "value": path} in paths

    kept = {path for path in PATHS if path in PAGE or path.startswith(CONTROL)}
    assert {path for path in PATHS if not is_let_through(path)} == kept
    longest = int(OPTIONS.defaults["body_timeout_ms"]) + int(OPTIONS.defaults["timeout_ms_max"])
    assert int(rule["timeouts"]["request"].removesuffix("s")) * 1000 > longest
    (calls,) = only(objects, "GRPCRoute")["spec"]["rules"]
    services = set(re.findall(r'"/([\w.]+)/', (ROOT / "src" / "grpc" / "calls.rs").read_text()))
    assert {match["method"]["service"] for match in calls["matches"]} == {service for service in services if "reflection" not in service}
    ports = {entry["name"]: entry["port"] for entry in only(objects, "Service")["spec"]["ports"]}
    for kind, port in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
        route = only(objects, kind)["spec"]
        (backend,) = route["rules"][0]["backendRefs"]
        assert backend == {"name": only(objects, "Service")["metadata"]["name"], "port": ports[port]}
        (parent,) = route["parentRefs"]
        api = only(objects, "NetworkPolicy")["spec"]["ingress"][0]
        assert {"http", "grpc"} == {entry["port"] for entry in api["ports"]}
        assert api["from"][1]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == parent["namespace"]


def test_the_pod_that_fills_the_claim_writes_what_replicas_read_and_is_none_of_them():
    folder = DEPLOY / "kubernetes" / "components" / "models-volume"
    (fill,) = common.documents((folder / "fill.yaml").read_text())
    kubernetes.validate(fill)
    objects = rendered(DEPLOY / "kubernetes" / "overlays" / "gpu")
    (volume,) = fill["spec"]["volumes"]
    claim = volume["persistentVolumeClaim"]
    assert claim["claimName"] == only(objects, "PersistentVolumeClaim")["metadata"]["name"] and not claim.get("readOnly")
    for user in ("runAsUser", "runAsGroup", "fsGroup"):
        assert fill["spec"]["securityContext"][user] == pod(objects)["securityContext"][user]
    assert "labels" not in fill["metadata"], "the Service would send requests to it"


def test_traces_may_go_to_the_collector_that_the_options_name_and_nowhere_else(tmp_path):
    objects = with_component(tmp_path, "tracing")
    endpoint = urllib.parse.urlsplit(options(objects)["otlp_endpoint"])
    dns, collector = only(objects, "NetworkPolicy")["spec"]["egress"]
    assert {entry["port"] for entry in dns["ports"]} == {53} and len(dns["to"]) == 1
    (to,) = collector["to"]
    assert to["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == endpoint.hostname.split(".")[1]
    assert collector["ports"] == [{"port": endpoint.port, "protocol": "TCP"}]
    assert options(objects)["backend"] == "gpu", "the other options are as they were"


def test_one_line_says_where_all_runbooks_are(tmp_path):
    """And no object with it goes to the cluster."""
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    file = tmp_path / "deploy" / "kubernetes" / "components" / "monitoring" / "runbooks.yaml"
    address = "https://git.example.org/ocelli/blob/main/docs/runbooks.md"
    for base in ("docs/runbooks.md", address):
        file.write_text(file.read_text().replace("url: docs/runbooks.md", f"url: {base}"))
        objects = rendered(tmp_path / "deploy" / "kubernetes" / "overlays" / "gpu")
        rendered.cache_clear()
        assert not [found for found in objects if found["metadata"]["name"].startswith("ocelli-runbooks")]
        rules = [rule for group in only(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
        urls = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule}
        assert urls == {alert: f"{base}#{alert.lower()}" for alert in prometheus.ALERTS}


def test_without_a_gpu_more_processors_are_asked_for():
    base, cpu = (rendered(DEPLOY / "kubernetes" / folder) for folder in ("base", "overlays/cpu"))
    asked = [int(container(objects)["resources"]["requests"]["cpu"]) for objects in (base, cpu)]
    assert asked[0] < asked[1]


def test_threads_are_as_many_as_the_processors_that_are_asked_for(objects):
    assert int(container(objects)["resources"]["requests"]["cpu"]) > 0
    common.assert_threads_follow_requests(container(objects))


def test_each_overlay_asks_for_its_kind_of_device():
    asked = {}
    for name in OVERLAYS:
        objects = rendered(DEPLOY / "kubernetes" / "overlays" / name)
        limits = container(objects)["resources"]["limits"]
        devices = {key: value for key, value in limits.items() if key.startswith("nvidia.com/")}
        asked[name] = devices, options(objects)["backend"], container(objects)["image"].endswith("-cuda")
    assert asked == {
        "cpu": ({}, "cpu", False),
        "gpu": ({"nvidia.com/gpu": "1"}, "gpu", True),
        "gpu-keda": ({"nvidia.com/gpu": "1"}, "gpu", True),
        "gpu-mig": ({"nvidia.com/mig-1g.10gb": "1"}, "gpu", True),
        "gpu-time-slicing": ({"nvidia.com/gpu.shared": "1"}, "auto", True),
    }


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_number_of_replicas_is_the_autoscalers(name):
    objects = rendered(DEPLOY / "kubernetes" / "overlays" / name)
    deployment = only(objects, "Deployment")
    assert "replicas" not in deployment["spec"]
    scalers = of_kind(objects, "HorizontalPodAutoscaler") + of_kind(objects, "ScaledObject")
    (scaler,) = scalers
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_the_autoscaler_and_the_adapter_speak_of_the_same_metrics():
    scaler = only(rendered(DEPLOY / "kubernetes" / "overlays" / "gpu"), "HorizontalPodAutoscaler")
    values = yaml.safe_load((DEPLOY / "kubernetes/components/hpa/prometheus-adapter.yaml").read_text())
    names = [rule["name"]["as"] for rule in values["rules"]["custom"]]
    assert [metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]] == names


def test_both_autoscalers_see_waits_for_devices_stalls_and_decoding():
    values = yaml.safe_load((DEPLOY / "kubernetes/components/hpa/prometheus-adapter.yaml").read_text())
    adapted = [rule["metricsQuery"] for rule in values["rules"]["custom"]]
    for query, rule in zip(adapted, values["rules"]["custom"], strict=True):
        # What the adapter asks for a pod is of the series that it has found for pods.
        assert re.match(r"\w+", rule["seriesQuery"])[0] in query
    scaled = only(rendered(DEPLOY / "kubernetes" / "overlays" / "gpu-keda"), "ScaledObject")["spec"]["triggers"]
    asked = [trigger["metadata"]["query"] for trigger in scaled]
    filled = [text.replace("<<.LabelMatchers>>", 'namespace="a"').replace("<<.GroupBy>>", "pod") for text in adapted]
    for queries in (asked, filled):
        names = [prometheus.named(query) for query in queries]
        assert set().union(*names) <= prometheus.metrics()
        assert names == [
            {"ocelli_stage_duration_seconds_sum", "ocelli_stage_duration_seconds_count"},
            {"ocelli_queue_items"},
            {"ocelli_decode_jobs", "ocelli_decode_threads"},
        ]


def test_the_device_plugin_offers_what_the_overlay_asks_for():
    text = (DEPLOY / "kubernetes/components/time-slicing/device-plugin.yaml").read_text()
    (plugin,) = common.documents(text)
    kubernetes.validate(plugin)
    sharing = yaml.safe_load(plugin["data"]["any"])["sharing"]["timeSlicing"]
    offered = {entry["name"] + (".shared" if sharing["renameByDefault"] else "") for entry in sharing["resources"]}
    limits = container(rendered(DEPLOY / "kubernetes/overlays/gpu-time-slicing"))["resources"]["limits"]
    assert offered <= limits.keys()
