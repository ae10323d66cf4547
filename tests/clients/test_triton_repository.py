"""Repositories made for Triton, served as they are and asked by Triton's own client."""

import functools
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import by_triton
import make_models
import numpy as np
import pytest
import reference
import requests
import tritonclient.http as triton
import wire
from server import until
from tritonclient.utils import InferenceServerException

ONNX = make_models.one_node("Identity", ["N", 4])
tensor = functools.partial(by_triton.tensor, triton)


@pytest.mark.parametrize(("version", "factor"), [("1", 2), ("3", 5), ("", 5)])
def test_the_versions_that_the_policy_chooses_are_served(client, version, factor):
    x = np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])
    reply = client.infer("scale", [tensor("x", x)], model_version=version)
    assert (reply.as_numpy("y") == factor * x).all()
    assert client.get_model_metadata("scale")["versions"] == ["1", "3"]
    assert not client.is_model_ready("scale", "2")


def test_batching_is_that_of_the_file(client):
    config = client.get_model_config("scale")
    assert config["max_batch_size"] == 8 and config["input"][0]["dims"] == [4], config
    assert config["dynamic_batching"]["preferred_batch_size"] == [1, 2, 3, 4, 6, 8], config
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 200, config
    assert config["dynamic_batching"]["default_priority_level"] == 2, config
    assert config["dynamic_batching"]["default_queue_policy"]["default_timeout_microseconds"] == 20_000_000, config


def test_classes_have_the_labels_of_their_file(client):
    x = np.float32([[1, 4, 3, 2]])
    outputs = [triton.InferRequestedOutput("y", class_count=2)]
    assert client.infer("scale", [tensor("x", x)], outputs=outputs).as_numpy("y").tolist() == [
        [b"20.000000:1:b", b"15.000000:2:c"]
    ]


def test_tensors_are_reshaped_reordered_and_hidden_as_declared(client):
    metadata = client.get_model_metadata("reshaped")
    assert metadata["versions"] == ["7"]
    assert [(i["name"], i["shape"]) for i in metadata["inputs"]] == [("b", [-1, 1]), ("a", [-1, 1])], metadata
    assert [(o["name"], o["shape"]) for o in metadata["outputs"]] == [("difference", [-1, 1])], metadata
    a, b = np.float32([[5], [6], [7]]), np.float32([[1], [2], [4]])
    reply = client.infer("reshaped", [tensor("a", a), tensor("b", b)])
    assert [output["name"] for output in reply.get_response()["outputs"]] == ["difference"]
    assert (reply.as_numpy("difference") == a - b).all()
    with pytest.raises(InferenceServerException, match="no output"):
        client.infer("reshaped", [tensor("a", a), tensor("b", b)], outputs=[triton.InferRequestedOutput("sum")])


def test_a_batch_size_of_0_leaves_the_first_axis_to_the_model(client):
    config = client.get_model_config("types")
    assert config["max_batch_size"] == 0 and config["input"][0]["dims"] == [-1], config


STRINGS = '''max_batch_size: 8
input { name: "x" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "y" data_type: TYPE_STRING dims: [ -1 ] }
'''


@pytest.mark.parametrize("config, items", [(STRINGS, 8), (None, 16)])
def test_a_model_of_strings_says_how_many_items_a_request_may_have(start_server, tmp_path, config, items):
    graph = make_models.Graph()
    graph.node("Identity", "x", output="y")
    (tmp_path / "echo" / "1").mkdir(parents=True)
    kind, shape = make_models.TYPES["BYTES"], ["N", "M"]
    (tmp_path / "echo" / "1" / "model.onnx").write_bytes(graph.bytes("echo", [("x", kind, shape)], [("y", kind, shape)]))
    if config:
        (tmp_path / "echo" / "config.pbtxt").write_text(config)
    server = start_server(tmp_path)
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        told = client.get_model_config("echo")
        assert told["max_batch_size"] == items and told["input"][0]["dims"] == [-1], told
        assert "dynamic_batching" not in told, told
        x = np.array([[b"a", b"b", b"c"]] * 20, dtype=np.object_)
        assert (client.infer("echo", [tensor("x", x, "BYTES")]).as_numpy("y") == x).all()
        none = np.zeros((3, 0), np.object_)
        assert client.infer("echo", [tensor("x", none, "BYTES")]).as_numpy("y").shape == (3, 0)
    assert server.stop() == 0


def write(folder, name, graph, config):
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.onnx").write_bytes(graph)
    (folder / name / "config.pbtxt").write_text(config)


MIXING = {
    # Each row less the mean of all: zeros for whoever is alone.
    "mean": ([("ReduceMean", ["x"], ["mean"], {"axes": [0]}), ("Sub", ["x", "mean"], ["y"], {})]),
    # The scale is that of the largest number.
    "quantized": (
        [("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], {}), ("DequantizeLinear", ["q", "scale", "zero"], ["y"], {})]
    ),
    "each": ([("Neg", ["x"], ["y"], {})]),
}
SIDES = """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""


def test_without_dynamic_batching_requests_are_put_together_only_if_that_changes_nothing(start_server, tmp_path):
    kind, shape = make_models.TYPES["FP32"], ["N", 4]
    for name, nodes in MIXING.items():
        graph = make_models.Graph()
        graph.nodes = [make_models.helper.make_node(op, given, made, **said) for op, given, made, said in nodes]
        file = graph.bytes(name, [("x", kind, shape)], [("y", kind, shape)])
        write(tmp_path, name, file, SIDES)
        write(tmp_path, name + "-merged", file, SIDES + "dynamic_batching { }")
    server = start_server(tmp_path)
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8) as client:
        configs = {name: client.get_model_config(name) for name in [m + end for m in MIXING for end in ("", "-merged")]}
        assert {config["max_batch_size"] for config in configs.values()} == {8}, configs
        # What it says is that requests are put together.
        merged = {name for name, config in configs.items() if "dynamic_batching" in config}
        assert merged == {"each", "each-merged", "mean-merged", "quantized-merged"}, configs
        for name in ("mean", "quantized"):
            asked = [np.full((1 + i % 3, 4), 10.0**i, np.float32) + np.float32([0, 1, 2, 3]) for i in range(8)]
            alone = [client.infer(name, [tensor("x", x)]).as_numpy("y") for x in asked]
            many = [client.async_infer(name, [tensor("x", x)]) for _ in range(20) for x in asked]
            for i, reply in enumerate(many):
                assert (reply.get_result().as_numpy("y") == alone[i % 8]).all(), (name, i)
            (told,) = client.get_inference_statistics(name)["model_stats"]
            assert told["execution_count"] == told["inference_stats"]["success"]["count"] == 8 + 160, told
    assert server.stop() == 0


def test_a_network_that_is_quantized_as_it_runs_answers_each_request_by_itself_without_a_config_too(start_server, tmp_path):
    kind, shape = make_models.TYPES["FP32"], ["N", 4]
    graph = make_models.Graph()
    graph.nodes = [make_models.helper.make_node(op, given, made, **said) for op, given, made, said in MIXING["quantized"]]
    graph.node("Neg", "y", output="z")
    for name, manifest in (("plain", ""), ("asked", '[batch]\naxis = "items"\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(graph.bytes(name, [("x", kind, shape)], [("y", kind, shape), ("z", kind, shape)]))
        (tmp_path / name / "model.toml").write_text(manifest)
    pictures = make_models.Graph()
    pictures.node("ReduceMean", "x", axes=[2, 3], keepdims=0, output="means")
    pictures.nodes += [make_models.helper.make_node("DynamicQuantizeLinear", ["means"], ["q", "scale", "zero"])]
    pictures.node("DequantizeLinear", "q", "scale", "zero", output="y")
    file = pictures.bytes("pictures", [("x", kind, ["N", 3, 8, 8])], [("y", kind, ["N", 3])])
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "model.onnx").write_bytes(file)
    (tmp_path / "pictures" / "model.toml").write_text("[input]\n")
    server = start_server(tmp_path)
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8) as client:
        configs = {name: client.get_model_config(name) for name in ("plain", "asked")}
        assert {config["max_batch_size"] for config in configs.values()} == {16}, configs
        assert [name for name, config in configs.items() if "dynamic_batching" in config] == ["asked"], configs
        asked = [np.full((1 + i % 3, 4), 10.0**i, np.float32) + np.float32([0, 1, 2, 3]) for i in range(8)]
        alone = [client.infer("plain", [tensor("x", x)]).as_numpy("y") for x in asked]
        many = [client.async_infer("plain", [tensor("x", x)]) for _ in range(20) for x in asked]
        for i, reply in enumerate(many):
            assert (reply.get_result().as_numpy("y") == alone[i % 8]).all(), i
        (told,) = client.get_inference_statistics("plain")["model_stats"]
        assert told["execution_count"] == told["inference_stats"]["success"]["count"] == 8 + 160, told
        colours = [reference.png(np.full((8, 8, 3), value, np.uint8)) for value in (0, 20, 255)]
        each = [client.infer("pictures", [tensor("x", np.array([one], object), "BYTES")]).as_numpy("y")[0] for one in colours]
        together = client.infer("pictures", [tensor("x", np.array(colours, object), "BYTES")]).as_numpy("y")
        assert (together == each).all() and len({tuple(row) for row in together}) == 3, (together, each)
    # A row of a reply is an item also where the request was one run.
    reply = requests.post(f"{server.url}/v1/models/plain:predict", json={"instances": asked[1].tolist()}, timeout=60).json()
    assert [sorted(row) for row in reply["predictions"]] == [["y", "z"], ["y", "z"]], reply
    assert server.stop() == 0
    said = [line for line in server.log_text().splitlines() if "is quantized as it runs" in line]
    assert len(said) == 3 and all(("WARN" in line) == ("asks for batches" in line) for line in said), said


def test_outputs_that_are_not_declared_do_not_keep_a_model_from_batching(start_server, tmp_path):
    graph = make_models.Graph()
    graph.node("Neg", "x", output="y")
    graph.node("ReduceSum", "x", output="loss", keepdims=0)
    graph.node("NonZero", "x", output="found")
    fp32, int64 = make_models.TYPES["FP32"], make_models.TYPES["INT64"]
    outputs = [("loss", fp32, []), ("y", fp32, ["N", 4]), ("found", int64, [2, "k"])]
    write(tmp_path, "some", graph.bytes("some", [("x", fp32, ["N", 4])], outputs), SIDES)
    server = start_server(tmp_path)
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8) as client:
        assert client.get_model_config("some")["max_batch_size"] == 8
        assert [output["name"] for output in client.get_model_metadata("some")["outputs"]] == ["y"]
        asked = [np.random.default_rng(i).standard_normal((1 + i % 3, 4), np.float32) for i in range(8)]
        many = [client.async_infer("some", [tensor("x", x)]) for _ in range(10) for x in asked]
        for i, reply in enumerate(many):
            reply = reply.get_result()
            assert (reply.as_numpy("y") == -asked[i % 8]).all(), i
            assert [output["name"] for output in reply.get_response()["outputs"]] == ["y"]
        with pytest.raises(InferenceServerException, match="no output"):
            client.infer("some", [tensor("x", asked[0])], outputs=[triton.InferRequestedOutput("loss")])
    assert 'outputs that are not declared are not computed: "loss", "found"' in server.log_text()
    assert server.stop() == 0


def test_what_no_file_declares_is_told_by_name_and_replies_are_in_that_order(start_server, tmp_path):
    graph = make_models.Graph()
    graph.node("Add", "z", "a", output="sum")
    graph.node("Sub", "z", "a", output="less")
    kind, shape = make_models.TYPES["FP32"], ["N", 2]
    inputs, outputs = [("z", kind, shape), ("a", kind, shape)], [("sum", kind, shape), ("less", kind, shape)]
    write(tmp_path, "two", graph.bytes("two", inputs, outputs), 'platform: "onnxruntime_onnx"')
    declared = """max_batch_size: 4
        input [ { name: "z" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "a" data_type: TYPE_FP32 dims: [ 2 ] } ]
        output [ { name: "sum" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "less" data_type: TYPE_FP32 dims: [ 2 ] } ]"""
    write(tmp_path, "said", graph.bytes("said", inputs, outputs), declared)
    server = start_server(tmp_path)
    z, a = np.float32([[5, 6]]), np.float32([[1, 1]])
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        for name, order in (("two", [["a", "z"], ["less", "sum"]]), ("said", [["z", "a"], ["sum", "less"]])):
            metadata = client.get_model_metadata(name)
            assert [[side["name"] for side in metadata[sides]] for sides in ("inputs", "outputs")] == order, metadata
            for asked in (None, [triton.InferRequestedOutput(output) for output in ("sum", "less")]):
                reply = client.infer(name, [tensor("z", z), tensor("a", a)], outputs=asked)
                assert [output["name"] for output in reply.get_response()["outputs"]] == ["less", "sum"]
                assert (reply.as_numpy("less") == z - a).all() and (reply.as_numpy("sum") == z + a).all()
    assert server.stop() == 0


def test_a_single_number_strings_that_are_numbers_and_inputs_with_a_value_are_served(start_server, tmp_path):
    kinds, graph = make_models.TYPES, make_models.Graph()
    graph.node("Identity", "x", output="y")
    # No axes, which Triton's dims cannot say.
    write(tmp_path, "single", graph.bytes("single", [("x", kinds["FP32"], [])], [("y", kinds["FP32"], [])]), """
        input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }""")
    graph = make_models.Graph()
    graph.node("Cast", "x", output="y", to=1)
    # An empty string is no number, so that the forward pass at load fails.
    write(tmp_path, "words", graph.bytes("words", [("x", kinds["BYTES"], [2])], [("y", kinds["FP32"], [2])]), """
        input { name: "x" data_type: TYPE_STRING dims: [ 2 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }""")
    graph = make_models.Graph()
    valued = graph.constant(np.float32([1, 2]))
    graph.node("Add", "x", valued, output="y")
    given = [("x", kinds["FP32"], [2]), (valued, kinds["FP32"], [2])]
    write(tmp_path, "valued", graph.bytes("valued", given, [("y", kinds["FP32"], [2])]), f"""
        input {{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }}
        input {{ name: "{valued}" data_type: TYPE_FP32 dims: [ 2 ] optional: true }}
        output {{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }}""")
    server = start_server(tmp_path)
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.get_model_metadata("single")["inputs"][0]["shape"] == [1]
        assert client.infer("single", [tensor("x", np.float32([7]))]).as_numpy("y").tolist() == [7]
        words = np.array([b"1.5", b"-2"], dtype=np.object_)
        assert client.infer("words", [tensor("x", words, "BYTES")]).as_numpy("y").tolist() == [1.5, -2]
        assert client.infer("valued", [tensor("x", np.float32([1, 1]))]).as_numpy("y").tolist() == [2, 3]
        assert [given["name"] for given in client.get_model_metadata("valued")["inputs"]] == ["x"]
    log = open(server.log, errors="replace").read()
    assert any("the file has a value for this optional input" in line and "valued" in line for line in log.splitlines())
    assert server.stop() == 0


def test_what_is_not_followed_is_in_the_log_by_name(server):
    log = open(server.log, errors="replace").read()
    for told in ('parameters["intra_op_thread_count"]: it is for', "optimization.graph: "):
        assert any("scale" in line and "config.pbtxt: " + told in line for line in log.splitlines()), told


WAIT_SECONDS = 10  # for company, at most

POLICIES = {
    # Requests wait for company, one of a priority but where its own policy says otherwise.
    "bounded": f"""max_queue_delay_microseconds: {WAIT_SECONDS * 1_000_000} priority_levels: 4 default_priority_level: 2
                  default_queue_policy {{ max_queue_size: 1 }}
                  priority_queue_policy {{ key: 3 value {{ max_queue_size: 2 }} }}
                  priority_queue_policy {{ key: 4 value {{ }} }}""",
    "deaf": "default_queue_policy { allow_timeout_override: false }",
    "hears": "default_queue_policy { allow_timeout_override: true }",
    "shortens": "default_queue_policy { default_timeout_microseconds: 10000000 allow_timeout_override: true }",
    "delays": "default_queue_policy { timeout_action: DELAY allow_timeout_override: true }",
    "plain": "preferred_batch_size: 4",
}


@pytest.fixture(scope="module")
def queued(start_server, tmp_path_factory):
    """Models that differ in how their requests may wait."""
    folder = tmp_path_factory.mktemp("queued")
    for name, policy in POLICIES.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.onnx").write_bytes(ONNX)
        (folder / name / "config.pbtxt").write_text(f"max_batch_size: 8 dynamic_batching {{ {policy} }}")
    server = start_server(folder, triton_metrics="on")
    yield server
    server.kill()


def test_no_more_requests_of_a_priority_wait_than_its_policy_lets(queued):
    def waiting(count):
        text = requests.get(queued.url + "/metrics", timeout=wire.TIMEOUT).text
        return f'nv_inference_pending_request_count{{model="bounded",version="1"}} {count}\n' in text

    def infer(priority, rows):
        x = np.full((rows, 4), priority, np.float32)
        with triton.InferenceServerClient(f"127.0.0.1:{queued.port}") as own:
            return own.infer("bounded", [tensor("x", x)], priority=priority).as_numpy("y")

    def fill(pool):
        def ask(priority, rows=1):
            return pool.submit(infer, priority, rows)

        asked = [ask(1)]
        until(lambda: waiting(1), WAIT_SECONDS, "the first waits for company")
        with pytest.raises(InferenceServerException, match="own queue of requests of this priority is full .1."):
            infer(1, 1)
        # What is beyond the levels has the usual one.
        asked.append(ask(7))
        until(lambda: waiting(2), WAIT_SECONDS, "the second has a bound of its own")
        with pytest.raises(InferenceServerException, match="is full .1."):
            infer(2, 1)
        for count in (3, 4):
            asked.append(ask(3))
            until(lambda: waiting(count), WAIT_SECONDS, "two of the last level wait")
        with pytest.raises(InferenceServerException, match="is full .2."):
            infer(3, 1)
        # As many as fill the batch end the wait of all.
        asked.append(ask(4, rows=4))
        assert [len(request.result()) for request in asked] == [1, 1, 1, 1, 4]

    def filled():
        began = time.monotonic()
        try:
            with ThreadPoolExecutor(8) as pool:
                fill(pool)
        # A failed expectation of pytest is not an exception of the usual kind.
        except (Exception, pytest.fail.Exception):
            # Requests wait for company for so long and no longer: on a machine that is too busy, it begins again.
            if time.monotonic() - began < WAIT_SECONDS:
                raise
            return False
        return True

    # Nothing waits with a deadline before its batch size was measured.
    for rows in (2, 4, 8):
        infer(4, rows)
    until(filled, 300, "all of it happens while the first request waits")


@pytest.mark.parametrize(("model", "hears"), [("deaf", False), ("hears", False), ("shortens", True), ("delays", False), ("plain", False)])
def test_a_timeout_is_heard_as_the_policy_says(queued, model, hears):
    """A microsecond is over before anything can run: refused, unless the request goes on without it, as where it shortens no time of the
    policy's own (nor does it in Triton), or only stands back."""
    with triton.InferenceServerClient(f"127.0.0.1:{queued.port}") as client:
        x = tensor("x", np.ones((1, 4), np.float32))
        if hears:
            with pytest.raises(InferenceServerException, match="deadline"):
                client.infer(model, [x], timeout=1)
        else:
            assert (client.infer(model, [x], timeout=1).as_numpy("y") == 1).all()
        policy = client.get_model_config(model)["dynamic_batching"]["default_queue_policy"]
        assert policy["timeout_action"] == ("DELAY" if model == "delays" else "REJECT"), policy
        assert policy["allow_timeout_override"] == (model != "deaf"), policy


GOOD = 'max_batch_size: 4\ninput { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }\n'
UNAVAILABLE = {
    "dims": (GOOD.replace("[ 4 ]", "[ 5 ]"), "declared as \"x\" (FP32 [-1, 5])", "the file has \"x\" (FP32 [-1, 4])"),
    "type": (GOOD.replace("FP32", "INT32"), "(INT32 [-1, 4])", "(FP32 [-1, 4])"),
    "name": (GOOD.replace('"x"', '"z"'), "input \"z\"", "the file has \"x\" (FP32 [-1, 4])"),
    "output": (GOOD + 'output { name: "q" data_type: TYPE_FP32 dims: 4 }', "output \"q\"", "the file has \"y\""),
    "axis": (GOOD.replace("max_batch_size: 4", ""), "(FP32 [4])", "(FP32 [-1, 4])"),
    "other-name": ('name: "scale"', "name is \"scale\", but the folder is called \"other-name\""),
    "typo": ("max_batch_size: 4\nmax_batchsize: 5", "config.pbtxt: line 2", "max_batchsize"),
    "ensemble": ('platform: "ensemble"\nensemble_scheduling { }', "ensemble_scheduling: ensembles are not supported"),
    "python": ('backend: "python"', "only \"onnxruntime\" is served"),
    "sequence": ("sequence_batching { direct { } }", "sequence_batching: "),
    "labels": (GOOD + 'output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "no.txt" }', "no.txt"),
    "warm": (GOOD + 'model_warmup { name: "w" batch_size: 9 }', "model_warmup[\"w\"].batch_size is 9"),
    "warm-data": (
        GOOD + 'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value {'
        ' data_type: TYPE_FP32 dims: 4 input_data_file: "lost" } } }',
        "warm-up \"w\": input \"x\": file warmup/lost",
    ),
}


def test_files_of_labels_and_warm_ups_may_lie_in_folders_of_their_own_and_be_longer(start_server, tmp_path):
    config = GOOD + """
output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "labels/all/l.txt" }
model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 input_data_file: "sub/raw" } } }
"""
    write(tmp_path, "apart", ONNX, config)
    for path, content in (("labels/all/l.txt", b"a\nb\nc\nd\n"), ("warmup/sub/raw", bytes(23))):
        (tmp_path / "apart" / path).parent.mkdir(parents=True)
        (tmp_path / "apart" / path).write_bytes(content)
    server = start_server(tmp_path)
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        outputs = [triton.InferRequestedOutput("y", class_count=1)]
        reply = client.infer("apart", [tensor("x", np.float32([[1, 4, 3, 2]]))], outputs=outputs)
        assert reply.as_numpy("y").tolist() == [[b"4.000000:1:b"]]
    assert "file warmup/sub/raw is longer than the 16 bytes of FP32 [4]" in server.log_text()
    assert server.stop() == 0


def test_what_cannot_be_served_says_why_and_stops_nobody_else(start_server, models, tmp_path):
    for name, (config, *_) in UNAVAILABLE.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.onnx").write_bytes(ONNX)
        (tmp_path / name / "config.pbtxt").write_text(config)
    shutil.copytree(models / "scale", tmp_path / "scale")
    server = start_server(tmp_path)
    entries = requests.get(server.url + "/v2/models", timeout=wire.TIMEOUT).json()["models"]
    reasons = {entry["name"]: entry["reason"] for entry in entries if entry["state"] == "UNAVAILABLE"}
    assert reasons.keys() == UNAVAILABLE.keys(), entries
    for name, (_, *told) in UNAVAILABLE.items():
        for words in told:
            assert words in reasons[name], (name, words, reasons[name])
    assert server.stop() == 0
