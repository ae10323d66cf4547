"""The file for Docker Compose: its form, and that all that it names is there."""

import json
import re
import subprocess
from pathlib import Path

import common
import jsonschema
import pytest
import yaml
from common import DEPLOY

FILE = DEPLOY / "compose.yaml"
COMPOSE = yaml.safe_load(FILE.read_text())
SERVICES = COMPOSE["services"]


def test_has_the_form_of_a_compose_file():
    schema = json.loads((Path(__file__).with_name("schemas") / "compose.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(COMPOSE)


def test_compose_itself_takes_it():
    try:
        there = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60).returncode == 0
    except FileNotFoundError:
        there = False
    if not there:
        assert "docker-compose" not in common.PROMISED
        pytest.skip("docker compose is missing: the file is only held against our own subset of its schema")
    common.run("docker", "compose", "-f", FILE, "config", "--quiet")


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_mounts_is_there(name):
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        assert (DEPLOY / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_images_of_others_are_pinned(name):
    image = SERVICES[name]["image"]
    assert name == "ocelli" or re.search(r":v?\d+\.\d+\.\d+$", image), image


def test_the_server_has_the_time_to_drain_and_options_that_exist():
    options = common.Options().given(variables=SERVICES["ocelli"]["environment"])
    drain = (int(options["drain_delay_ms"]) + int(options["drain_timeout_ms"])) / 1000
    assert int(SERVICES["ocelli"]["stop_grace_period"].removesuffix("s")) >= drain + 5


def test_grafana_finds_prometheus_and_the_dashboard_and_prometheus_the_server():
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{SERVICES['prometheus']['ports'][0].split(':')[-1]}"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "ocelli.yaml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in mounted and Path(home).parent == Path(provider["options"]["path"])
    (job,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    options = common.Options().given(variables=SERVICES["ocelli"]["environment"])
    assert job["static_configs"][0]["targets"] == [f"ocelli:{common.port(options['metrics_listen'])}"]
