"""Models that come and go while the server runs: by Triton's client, and with their folder."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import make_models
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import wire
from by_triton import refuses, tensor
from server import free_ports, until

TOKEN = "a-token-of-sixteen-or-more"
X = np.ones((1, 16), np.float32)
SECONDS_MAX = 300  # only bounds a test that hangs


def given(x=X):
    return [tensor(triton, "x", x)]


@pytest.fixture()
def folder(models, tmp_path):
    """A folder of its own with a model that copies, and one that adds."""
    for name in ("identity", "add"):
        shutil.copytree(models / name, tmp_path / "models" / name)
    return tmp_path / "models"


@pytest.fixture()
def server(start_server, folder):
    server = start_server(folder, repository_mode="explicit")
    yield server
    server.kill()


def index(client, name=None):
    entries = {(e["name"], e["version"]): e for e in client.get_model_repository_index()}
    return entries if name is None else entries[name, "1"]


def test_a_start_with_chosen_models_leaves_the_others_to_callers(start_server, folder, tmp_path):
    server = start_server(folder, repository_mode="explicit", startup_models="add")
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.is_model_ready("add") and not client.is_model_ready("identity")
        there = {entry["name"]: entry for entry in client.get_model_repository_index()}
        assert there["identity"]["state"] == "UNAVAILABLE" and "not loaded" in there["identity"]["reason"], there
        client.load_model("identity")
        assert client.is_model_ready("identity")
    server.kill()
    unknown = r'ended with 78:(.|\n)*2 mistakes(.|\n)*OCELLI_STARTUP_MODELS: (.|\n)*no model "ad" in (.|\n)*; nearest: add\n(.|\n)*no model "nothing" in '
    with pytest.raises(AssertionError, match=unknown):
        start_server(folder, startup_models="add,ad,nothing")


def test_models_are_unloaded_and_loaded(server, client):
    assert index(client, "identity") == {"name": "identity", "version": "1", "state": "READY", "reason": ""}
    client.unload_model("identity")
    assert not client.is_model_ready("identity") and client.is_server_ready()
    refuses(lambda: client.infer("identity", given()), "unknown model")
    # As in Triton: with the version that has served.
    unloaded = {"name": "identity", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    for _ in range(2):
        assert index(client, "identity") == unloaded and ("identity", "") not in index(client)
        client.unload_model("identity")
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as other:
        entries = other.get_model_repository_index(as_json=True)["models"]
        assert [entry for entry in entries if entry["name"] == "identity"] == [unloaded]
    client.load_model("identity")
    assert index(client, "identity")["state"] == "READY"
    assert (client.infer("identity", given()).as_numpy("y") == X).all()
    # Whoever cleans up need not know what there was.
    client.unload_model("nothing")
    refuses(lambda: client.load_model("nothing"), "failed to load", "nothing lies in the model folder")


def test_a_load_says_which_versions_are_served(server, client, folder):
    for version in ("2", "10"):
        (folder / "identity" / version).mkdir()
        shutil.copy(folder / "identity" / "model.onnx", folder / "identity" / version)

    def served(**config):
        client.load_model("identity", config=json.dumps(config) if config else None)
        return client.get_model_metadata("identity")["versions"]

    assert served() == ["1", "2", "10"]
    assert served(version_policy={"specific": {"versions": [2]}}) == ["2"]
    assert not client.is_model_ready("identity", "10") and (client.infer("identity", given()).as_numpy("y") == X).all()
    assert client.get_model_config("identity")["version_policy"] == {"specific": {"versions": [2]}}
    unheard = {"optimization": {"priority": "PRIORITY_MAX"}, "response_cache": {"enable": True}}
    assert served(version_policy={"all": {}}, **unheard) == ["1", "2", "10"]
    assert "optimization.priority: " in server.log_text() and "response_cache.enable: " in server.log_text()
    assert client.get_model_metadata("identity", "10")["versions"] == ["10"]
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as other:
        assert other.get_model_metadata("identity", "2").versions == ["2"]
        assert other.get_model_metadata("identity").versions == ["1", "2", "10"]
    refuses(lambda: served(version_policy={"latest": {"num_versions": 0}}), "num_versions is 0")
    refuses(lambda: served(version_policy={"specific": {"versions": [3]}}), "there is no folder 3")


def test_a_configuration_that_is_refused_touches_no_version(client, folder):
    (folder / "identity" / "2").mkdir()
    shutil.copy(folder / "identity" / "model.onnx", folder / "identity" / "2")
    wrong = json.dumps({"platform": "tensorflow_savedmodel"})
    client.unload_model("identity")
    refuses(lambda: client.load_model("identity", config=wrong), "platform")
    assert not client.is_model_ready("identity")
    assert not [version for (name, version), entry in index(client).items() if name == "identity" and entry["state"] == "READY"]
    client.load_model("identity")
    refuses(lambda: client.load_model("identity", config=wrong), "platform")
    assert client.get_model_metadata("identity")["versions"] == ["1", "2"]
    assert (client.infer("identity", given()).as_numpy("y") == X).all()


def test_a_model_whose_folder_is_gone_goes_on_and_a_load_says_so(client, folder):
    shutil.rmtree(folder / "add")
    refuses(lambda: client.load_model("add"), "nothing lies in the model folder under this name")
    assert client.is_model_ready("add")


def test_a_server_that_all_models_have_left_is_ready_for_the_next(client):
    for name in ("identity", "add"):
        client.unload_model(name)
        assert not client.is_model_ready(name)
        assert client.is_server_ready() and client.is_server_live()
    client.load_model("add")
    assert client.is_server_ready() and client.is_model_ready("add")


def test_a_new_model_and_a_new_version_are_loaded(client, folder, models):
    shutil.copytree(models / "embed", folder / "embed")
    assert not client.is_model_ready("embed")
    client.load_model("embed")
    assert client.is_model_ready("embed")
    (folder / "identity" / "2").mkdir()
    shutil.copy(folder / "identity" / "model.onnx", folder / "identity" / "2")
    client.load_model("identity")
    assert client.get_model_metadata("identity")["versions"] == ["1", "2"]
    assert client.infer("identity", given()).get_response()["model_version"] == "2"
    shutil.rmtree(folder / "identity" / "2")
    client.load_model("identity")
    assert client.get_model_metadata("identity")["versions"] == ["1"]


def test_a_load_that_fails_leaves_the_old_one_serving_and_is_an_error_each_time(client, folder):
    model = folder / "identity" / "model.onnx"
    good = model.read_bytes()
    model.write_bytes(b"no model")
    for _ in range(2):
        refuses(lambda: client.load_model("identity"), "failed to load", "not an ONNX file")
        assert (client.infer("identity", given()).as_numpy("y") == X).all()
        entry = index(client, "identity")
        assert entry["state"] == "READY" and "the last load failed" in entry["reason"], entry
    model.write_bytes(good)
    client.load_model("identity")
    assert index(client, "identity")["reason"] == ""

    (folder / "bad").mkdir()
    (folder / "bad" / "model.onnx").write_bytes(b"no model")
    for _ in range(2):
        refuses(lambda: client.load_model("bad"), "failed to load")
        assert index(client, "bad")["state"] == "UNAVAILABLE" and index(client, "bad")["reason"]


def test_no_request_fails_while_a_model_is_loaded_anew(client, server, folder):
    stop, failures, answered = threading.Event(), [], []

    def ask(seed):
        rng = np.random.default_rng(seed)
        with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as own:
            while not stop.is_set():
                x = rng.random((rng.integers(1, 5), 16), np.float32)
                try:
                    assert (own.infer("identity", given(x)).as_numpy("y") == x).all()
                    answered.append(1)
                except Exception as error:  # whatever it is, the test fails with it
                    failures.append(repr(error))
                    return

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        before = len(answered)
        (folder / "identity" / "model.onnx").touch()
        client.load_model("identity")
        until(lambda: len(answered) > before or failures, SECONDS_MAX, "requests are answered between two loads")
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures and len(answered) > 15, failures
    # Old instances are gone: only the last one has counts.
    (entry,) = client.get_inference_statistics("identity")["model_stats"]
    assert entry["inference_stats"]["fail"]["count"] == 0, entry


def test_a_load_may_change_the_configuration(client, folder):
    client.load_model("identity", config=json.dumps({"max_batch_size": 4, "instance_group": [{"count": 1}]}))
    config = client.get_model_config("identity")
    assert config["max_batch_size"] == 4 and config["dynamic_batching"]["preferred_batch_size"] == [1, 2, 4], config
    # What was read may be sent again, with a change.
    config["dynamic_batching"]["max_queue_delay_microseconds"] = 2000
    client.load_model("identity", config=json.dumps(config))
    assert client.get_model_config("identity")["dynamic_batching"]["max_queue_delay_microseconds"] == 2000
    refuses(lambda: client.load_model("identity", config='{"ensemble_scheduling": {}}'), "ensemble_scheduling")
    refuses(lambda: client.load_model("add", config='{"max_batch_size": 5000}'), "allowed: 1 to 1024")
    (folder / "identity" / "model.onnx").touch()
    client.load_model("identity")
    assert client.get_model_config("identity")["max_batch_size"] == 16


@pytest.mark.parametrize("wire_name", ["http", "grpc"])
def test_a_load_of_a_model_that_serves_and_has_the_same_files_changes_nothing(server, client, folder, wire_name):
    other = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
    load = client.load_model if wire_name == "http" else other.load_model

    def now():
        (entry,) = client.get_inference_statistics("identity")["model_stats"]
        return client.get_model_config("identity")["max_batch_size"], entry["inference_count"]

    client.infer("identity", given())
    load("identity")
    assert now() == (16, 1)
    load("identity", config=json.dumps({"max_batch_size": 4}))
    client.infer("identity", given())
    with ThreadPoolExecutor(8) as workers:
        url = f"{server.url}/v2/repository/models/identity/load"
        assert [r.status_code for r in workers.map(lambda _: requests.post(url, timeout=wire.TIMEOUT), range(8))] == [200] * 8
    load("identity")
    assert now() == (4, 1)
    (folder / "identity" / "labels.txt").write_text("a")
    load("identity")
    assert now() == (16, 0)
    other.close()


@pytest.mark.parametrize("wire_name", ["http", "grpc"])
def test_a_configuration_that_was_read_can_be_sent_back_also_after_an_unload(server, client, wire_name):
    other = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
    config_of = {
        "http": client.get_model_config,
        "grpc": lambda name: other.get_model_config(name, as_json=True)["config"],
    }[wire_name]
    client.load_model("identity", config=json.dumps({"max_batch_size": 4}))
    for name in ("identity", "add"):
        config = config_of(name)
        for unloaded in (False, True):
            if unloaded:
                client.unload_model(name)
            client.load_model(name, config=json.dumps(config))
            assert config_of(name) == config
        # What it cannot have is seen before it serves.
        client.unload_model(name)
        wrong = {**config, "input": [{**config["input"][0], "dims": [7]}]}
        refuses(lambda: client.load_model(name, config=json.dumps(wrong)), '"input" is not as the model has it')
        assert not client.is_model_ready(name)
        client.load_model(name)
    other.close()


@pytest.mark.parametrize("wire_name", ["http", "grpc"])
def test_a_load_may_say_the_kind_of_devices_that_is_told_or_leave_it_to_the_server(server, client, wire_name):
    other = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
    config = other.get_model_config("identity", as_json=True)["config"]
    (told,) = client.get_model_config("identity")["instance_group"]
    # As Model Analyzer does, which changes what it read.
    assert config["instance_group"][0]["kind"] == told["kind"] != "KIND_AUTO"
    load = client.load_model if wire_name == "http" else other.load_model
    load("identity", config=json.dumps(config))
    for kind in (told["kind"], "KIND_AUTO"):
        load("identity", config=json.dumps({**config, "instance_group": [{"count": 2, "kind": kind}]}))
        now = {**told, "count": 2}
        assert client.get_model_config("identity")["instance_group"] == [now]
    (elsewhere,) = {"KIND_CPU", "KIND_GPU"} - {told["kind"]}
    for kind in (elsewhere, "KIND_MODEL"):
        change = json.dumps({"instance_group": [{"kind": kind}]})
        refuses(lambda: load("identity", config=change), f'it is "{told["kind"]}" or "KIND_AUTO"')
    other.close()


def test_a_model_has_all_its_instances_though_none_had_as_many_at_the_start(server, client):
    def workers():
        names = [path.read_text().strip() for path in Path(f"/proc/{server.process.pid}/task").glob("*/comm")]
        return sorted(name for name in names if name.startswith("ocelli-cpu-"))

    assert workers() == ["ocelli-cpu-0"]
    client.load_model("identity", config=json.dumps({"max_batch_size": 4, "instance_group": [{"count": 3}]}))
    assert (client.infer("identity", given()).as_numpy("y") == X).all()
    assert workers() == ["ocelli-cpu-0", "ocelli-cpu-1", "ocelli-cpu-2"]


CONFIG = {
    "backend": "onnxruntime",
    "max_batch_size": 4,
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4], "label_filename": "words.txt"}],
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
    "dynamic_batching": {"default_queue_policy": {"max_queue_size": 7}},
}
FILES = {"file:1/model.onnx": make_models.one_node("Neg", ["N", 4]), "file:words.txt": b"a\nb\nc\nd\n"}
ROW = np.float32([[1, 2, 3, 4]])


@pytest.mark.parametrize("wire_name", ["http", "grpc"])
def test_a_model_may_come_with_its_load(start_server, folder, tmp_path, monkeypatch, wire_name):
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setenv("TMPDIR", str(kept))
    server = start_server(folder, repository_mode="explicit")
    if wire_name == "http":
        client, own = triton.InferenceServerClient(f"127.0.0.1:{server.port}"), triton
        config_of = client.get_model_config
    else:
        client, own = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}"), triton_grpc
        config_of = lambda name: client.get_model_config(name, as_json=True)["config"]

    def negated(name, classes=0):
        x = own.InferInput("x", [1, 4], "FP32")
        x.set_data_from_numpy(ROW)
        outputs = [own.InferRequestedOutput("y", class_count=classes)]
        return client.infer(name, [x], outputs=outputs).as_numpy("y")

    # A model that the folder does not have, and one that it has.
    for name in ("brought", "identity"):
        client.load_model(name, config=json.dumps(CONFIG), files=FILES)
        assert (negated(name) == -ROW).all()
        assert negated(name, 1).tolist() == [[b"-1.000000:0:a"]]
        config = config_of(name)
        assert config["output"][0]["label_filename"] == "words.txt", config
        assert config["dynamic_batching"]["default_queue_policy"]["max_queue_size"] == 7, config
    assert len(list(kept.glob("ocelli-model-*"))) == 2
    # A load that fails leaves what serves.
    broken = {**FILES, "file:1/model.onnx": b"no model"}
    refuses(lambda: client.load_model("brought", config=json.dumps(CONFIG), files=broken), "not an ONNX file")
    refuses(lambda: client.load_model("brought", config='{"backend": "python"}', files=FILES), "only \"onnxruntime\"")
    assert (negated("brought") == -ROW).all()
    # The next load without files is of the folder.
    refuses(lambda: client.load_model("brought"), "nothing lies in the model folder")
    client.load_model("identity")
    assert config_of("identity")["input"][0]["dims"] in ([16], ["16"])
    client.unload_model("brought")
    until(lambda: not list(kept.glob("ocelli-model-*")), SECONDS_MAX, "files of models that are gone are removed")
    # What is no model to be loaded.
    refuses(lambda: client.load_model("brought", files=FILES), "need the parameter config")
    refuses(lambda: client.load_model("a b", config="{}", files=FILES), "must be 1 to 64")
    refuses(lambda: client.load_model("brought", config="{}", files={"file:../x": b"x"}), "must be VERSION/NAME")
    client.close()
    server.kill()


def test_a_load_is_as_large_as_a_body_may_be(start_server, folder):
    server = start_server(folder, repository_mode="explicit", body_bytes_max=2_000_000)
    files = {**FILES, "file:1/more.bin": bytes(1_300_000)}
    http, grpc = f"127.0.0.1:{server.port}", f"127.0.0.1:{server.grpc_port}"
    with triton.InferenceServerClient(http) as client, triton_grpc.InferenceServerClient(grpc) as other:
        client.load_model("brought", config=json.dumps(CONFIG), files=files)
        files["file:1/more.bin"] = bytes(2_100_000)
        refuses(lambda: client.load_model("brought", config=json.dumps(CONFIG), files=files), "body_bytes_max")
        refuses(lambda: other.load_model("brought", config=json.dumps(CONFIG), files=files), "2000000")
        assert client.is_model_ready("brought")
    server.kill()


def test_without_a_mode_nobody_may_load_and_with_a_token_only_who_has_it(start_server, folder):
    server = start_server(folder)
    url = f"{server.url}/v2/repository/models/identity/load"
    reply = requests.post(url, timeout=wire.TIMEOUT)
    assert reply.status_code == 403 and "repository_mode" in reply.json()["error"], reply.text
    assert requests.post(f"{server.url}/v2/repository/index", timeout=wire.TIMEOUT).status_code == 200
    server.kill()

    server = start_server(folder, repository_mode="explicit", admin_token=TOKEN)
    url = f"{server.url}/v2/repository/models/identity/load"
    for headers in ({}, {"Authorization": "Bearer " + TOKEN[:-1]}, {"Authorization": "Basic " + TOKEN}):
        reply = requests.post(url, headers=headers, timeout=wire.TIMEOUT)
        assert reply.status_code == 403 and TOKEN[:8] not in reply.text, reply.text
    for base in (server.url, server.admin_url):
        reply = requests.post(
            f"{base}/v2/repository/models/identity/load",
            headers={"Authorization": "Bearer " + TOKEN},
            timeout=wire.TIMEOUT,
        )
        assert wire.ok(reply) == {"name": "identity", "load": True}
    assert TOKEN[:8] not in server.log_text()
    server.kill()


def test_models_follow_their_folder(start_server, folder, models):
    server = start_server(folder, repository_mode="watch")

    def ready(name):
        return server.status(f"/v2/models/{name}/ready") == 200

    assert ready("identity") and not ready("embed")
    shutil.copytree(models / "embed", folder / "embed")
    until(lambda: ready("embed"), SECONDS_MAX, "a new model is served")
    shutil.rmtree(folder / "add")
    until(lambda: not ready("add"), SECONDS_MAX, "a model that is gone is not served")
    good = (folder / "identity" / "model.onnx").read_bytes()
    (folder / "identity" / "model.onnx").write_bytes(b"no model")

    def reason():
        reply = requests.post(f"{server.url}/v2/repository/index", timeout=wire.TIMEOUT).json()
        return next(e["reason"] for e in reply if e["name"] == "identity")

    until(lambda: "the last load failed" in reason(), SECONDS_MAX, "the failure is listed")
    assert ready("identity")
    (folder / "identity" / "model.onnx").write_bytes(good)
    until(lambda: reason() == "", SECONDS_MAX, "the model is loaded again")
    server.kill()


@pytest.mark.parametrize("how", ["a link to the folder", "the folder", "a link to a model"])
def test_models_follow_what_takes_the_place_of_their_folder(start_server, models, tmp_path, how):
    """As a volume that is synchronised from elsewhere does it: all at once, by a link or a name that changes hands."""
    releases = [tmp_path / name for name in ("first", "second")]
    shutil.copytree(models / "identity", releases[0] / "identity")
    shutil.copytree(models / "identity", releases[1] / "identity")
    other = (models / "add" / "model.onnx").read_bytes()
    (releases[1] / "identity" / "model.onnx").write_bytes(other)
    served = tmp_path / "models"

    def link(at, to):
        (tmp_path / "next").symlink_to(to)
        (tmp_path / "next").rename(at)

    if how == "a link to the folder":
        link(served, releases[0])
    elif how == "the folder":
        shutil.copytree(releases[0], served)
    else:
        served.mkdir()
        link(served / "identity", releases[0] / "identity")
    server = start_server(served, repository_mode="watch")

    def inputs():
        reply = requests.get(f"{server.url}/v2/models/identity", timeout=wire.TIMEOUT).json()
        return [spec["name"] for spec in reply.get("inputs", [])]

    before = inputs()
    if how == "a link to the folder":
        link(served, releases[1])
    elif how == "the folder":
        shutil.rmtree(served)
        shutil.copytree(releases[1], served)
    else:
        link(served / "identity", releases[1] / "identity")
    until(lambda: inputs() not in ([], before), SECONDS_MAX, "what lies there now is served")
    # And it is heard from then on.
    shutil.copytree(models / "embed", served / "embed")
    until(lambda: server.status("/v2/models/embed/ready") == 200, SECONDS_MAX, "a new model is served")
    server.kill()


def test_the_api_listens_on_several_addresses_and_metrics_apart(start_server, only_digits):
    first, second, metrics = free_ports(3)
    server = start_server(
        only_digits,
        port=first,
        listen=f"127.0.0.1:{first}, 127.0.0.1:{second}",
        metrics_listen=f"127.0.0.1:{metrics}",
    )
    for port, path, status in (
        (second, "/v2/models/digits/ready", 200),
        (metrics, "/metrics", 200),
        (metrics, "/v2/models/digits/ready", 404),
    ):
        reply = requests.get(f"http://127.0.0.1:{port}{path}", timeout=wire.TIMEOUT)
        assert reply.status_code == status, (port, path, reply.text)
    assert server.stop() == 0
