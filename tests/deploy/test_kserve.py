"""The manifests for KServe: containers are ones that Kubernetes takes, services find the runtime, and time suffices."""

import re

import common
import kubernetes
import pytest
import yaml
from common import DEPLOY, ROOT
from kubernetes import of_kind, only, rendered

OPTIONS = common.Options()
PATHS = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]


@pytest.fixture(scope="module")
def objects():
    return rendered(DEPLOY / "kserve")


@pytest.fixture(scope="module")
def container(objects):
    (found,) = only(objects, "ServingRuntime")["spec"]["containers"]
    return found


def given(container, variables=()):
    assert container["args"][0] == "serve"
    return OPTIONS.given(container["args"][1:], variables)


def test_kserve_takes_every_object(objects):
    for found in objects:
        kubernetes.validate(found)


def test_containers_and_pods_are_ones_that_kubernetes_takes(objects, container):
    runtime = only(objects, "ServingRuntime")["spec"]
    kubernetes.validate_pod({key: runtime[key] for key in ("containers", "volumes")}, "runtime")
    for service in of_kind(objects, "InferenceService"):
        predictor = dict(service["spec"]["predictor"])
        model = predictor.pop("model")
        merged = container | {key: model[key] for key in ("image", "env", "resources") if key in model}
        predictor = {k: v for k, v in predictor.items() if k in ("terminationGracePeriodSeconds", "tolerations")}
        kubernetes.validate_pod({"containers": [merged], "volumes": runtime["volumes"], **predictor}, "predictor")


def test_serves_where_kserve_looks(container):
    options = given(container)
    assert options["models"] == "/mnt/models" and options["model_name"] == "{{.Name}}"
    assert options["listen"] == "0.0.0.0:8080"
    assert [entry["containerPort"] for entry in container["ports"]] == [8080]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == common.port(options["admin_listen"]) != 8080 and "get" in PATHS[asked["path"]]


# Where KServe's agent listens, which takes the requests of a service that has a logger or a batcher.
AGENT = 9081


def test_only_the_api_the_agent_and_metrics_are_let_in(objects, container):
    spec = only(objects, "NetworkPolicy")["spec"]
    (chosen,) = spec["podSelector"]["matchExpressions"]
    assert chosen["key"] == "serving.kserve.io/inferenceservice" and chosen["operator"] == "In"
    assert set(chosen["values"]) == {service["metadata"]["name"] for service in of_kind(objects, "InferenceService")}
    assert spec["policyTypes"] == ["Ingress"] and all(rule["from"] for rule in spec["ingress"])
    options = given(container)
    (callers, prometheus) = ({entry["port"] for entry in rule["ports"]} for rule in spec["ingress"])
    grpc = re.search(r"`--grpc-listen=0\.0\.0\.0:(\d+)`", (ROOT / "docs/operations.md").read_text())
    assert callers == {common.port(options["listen"]), int(grpc[1]), AGENT}
    assert prometheus == {common.port(options["metrics_listen"])}


def test_metrics_are_where_the_annotations_say(objects, container):
    annotations = only(objects, "ServingRuntime")["spec"]["annotations"]
    assert int(annotations["prometheus.kserve.io/port"]) == common.port(given(container)["metrics_listen"])
    assert "get" in PATHS[annotations["prometheus.kserve.io/path"]]


def test_services_name_the_runtime_and_a_format_of_it(objects, container):
    runtime = only(objects, "ServingRuntime")
    formats = {entry["name"] for entry in runtime["spec"]["supportedModelFormats"]}
    options = given(container)
    drain = (int(options["drain_delay_ms"]) + int(options["drain_timeout_ms"])) / 1000
    for service in of_kind(objects, "InferenceService"):
        predictor = service["spec"]["predictor"]
        model = predictor["model"]
        assert model["runtime"] == runtime["metadata"]["name"] and model["modelFormat"]["name"] in formats
        assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
        assert predictor["terminationGracePeriodSeconds"] >= drain + 5
        given(container, {entry["name"]: entry["value"] for entry in model.get("env", [])})


def test_threads_are_as_many_as_the_processors_that_are_asked_for(container):
    assert int(container["resources"]["requests"]["cpu"]) > 0
    common.assert_threads_follow_requests(container)


def test_runs_without_rights_and_within_its_memory(objects, container):
    security = container["securityContext"]
    assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"] and security["runAsUser"] == 10001
    options = given(container)
    held = sum(common.size(options[name]) for name in ("in_flight_bytes_max", "decode_bytes_max", "queue_bytes_max"))
    assert held + (1 << 30) <= common.size(container["resources"]["limits"]["memory"])
