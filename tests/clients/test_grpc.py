"""gRPC: Triton's own client against the live server, and the messages themselves where the client hides them."""

import functools
import gzip
import json
import queue
import re
import shutil
import socket
import struct
import threading

import by_triton
import grpc
import http2
import make_models
import ml_dtypes
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import wire
from google.protobuf import descriptor_pb2, empty_pb2, unknown_fields
from server import ROOT, until
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

SECONDS = 120  # only bounds a test that hangs


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        yield client


@pytest.fixture(scope="module")
def channel(server):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=options) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


tensor = functools.partial(by_triton.tensor, triton)


def fails(call, code, *told):
    """The error of a call that must fail with this code, saying these things."""
    with pytest.raises((InferenceServerException, grpc.RpcError)) as caught:
        call()
    error = caught.value
    text = str(error) if isinstance(error, InferenceServerException) else error.details()
    got = error.status() if isinstance(error, InferenceServerException) else str(error.code())
    assert got == f"StatusCode.{code}", (got, text)
    for words in told:
        assert words in text, text
    return error


def message(model, name, array, datatype="FP32", **members):
    """A request with one raw input."""
    request = service_pb2.ModelInferRequest(model_name=model, **members)
    request.inputs.add(name=name, datatype=datatype, shape=array.shape)
    request.raw_input_contents.append(array.tobytes())
    return request


def gauge(server, name):
    text = requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text
    return int(re.search(rf"^{name} (\d+)$", text, re.MULTILINE)[1])


def until_in_flight(server, count):
    """A place is given back after the reply went out: whoever counts on it waits for that."""
    until(lambda: gauge(server, "ocelli_requests_in_flight") == count, SECONDS, f"{count} requests are in flight")


def outcomes(server, model, outcome):
    text = requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text
    found = re.search(rf'^ocelli_outcomes_total{{model="{model}",outcome="{outcome}"}} (\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0


ONES = np.ones((1, 16), np.float32)

# --- What there is --------------------------------------------------------------------------------------------------


def test_health_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("digits") and client.is_model_ready("digits", "1")
    assert client.is_model_ready("digits", "1.0"), "TorchServe's versions have a point"
    assert not client.is_model_ready("digits", "9") and not client.is_model_ready("nothing")
    assert not client.is_model_ready("broken")
    metadata = client.get_server_metadata()
    assert metadata.name == "ocelli" and "statistics" in metadata.extensions, metadata
    metadata = client.get_model_metadata("digits")
    assert list(metadata.versions) == ["1"] and metadata.platform == "onnxruntime_onnx", metadata
    assert (metadata.inputs[0].name, list(metadata.inputs[0].shape)) == ("image", [-1, 1, 32, 32]), metadata
    fails(lambda: client.get_model_metadata("digit"), "NOT_FOUND", "unknown model", "digits")


def test_the_server_has_the_name_that_it_was_given(start_server, only_digits):
    server = start_server(only_digits, server_name="triton")
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        assert client.get_server_metadata().name == "triton"
    assert wire.ok(requests.get(server.url + "/v2", timeout=wire.TIMEOUT))["name"] == "triton"


def test_grpcs_own_health_check_says_ready(channel):
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    serving = b"\x08\x01"
    assert check(b"", timeout=SECONDS) == serving
    assert check(b"\x0a\x1einference.GRPCInferenceService", timeout=SECONDS) == serving
    fails(lambda: check(b"\x0a\x05other", timeout=SECONDS), "NOT_FOUND", '"other"')
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=SECONDS)
    assert next(watch) == serving
    watch.cancel()


@pytest.mark.parametrize("packed", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_health_and_reflection_are_told_to_a_channel_that_packs(server, packed):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", compression=packed) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"\x0a\x1einference.GRPCInferenceService", timeout=SECONDS) == b"\x08\x01"
        reflect = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        # What services there are.
        assert b"inference.GRPCInferenceService" in next(reflect(iter([b"\x3a\x00"]), timeout=SECONDS))


def test_no_request_of_a_busy_channel_is_lost_in_a_drain(start_server, only_digits):
    image = service_pb2.ModelInferRequest.InferInputTensor(name="image", datatype="FP32", shape=[1, 1, 32, 32])
    asked = service_pb2.ModelInferRequest(model_name="digits", inputs=[image], raw_input_contents=[bytes(4096)])
    server = start_server(only_digits, drain_delay_ms=2000, drain_timeout_ms=20_000)
    answered, lost = [], []
    began = threading.Event()

    def ask(stub):
        while True:
            try:
                stub.ModelInfer(asked, timeout=SECONDS)
            except grpc.RpcError as error:
                # Once the listener has closed, nothing was sent.
                if "refused" in error.details():
                    return
                lost.append(error.details())
            else:
                answered.append(began.is_set())

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        callers = [threading.Thread(target=ask, args=(stub,)) for _ in range(24)]
        for caller in callers:
            caller.start()
        until(lambda: len(answered) > 100, 60, "requests are answered")
        began.set()
        server.terminate()
        for caller in callers:
            caller.join(SECONDS)
    print(f"{sum(answered)} of {len(answered)} requests were answered in the drain")
    # The HTTP/2 library ends a connection with an error where the window of a call that began as it was told to go is made larger: of the one
    # connection that there was before the drain, those calls may be lost.
    told_to_go = [error for error in lost if "GOAWAY received; Error code: 1" in error]
    assert server.wait_exit() == 0 and lost == told_to_go and len(lost) <= len(callers) and any(answered), (lost[:3], len(lost))


def test_configuration_and_statistics_are_those_of_the_rest_api(server, client):
    config = client.get_model_config("scale", as_json=True)["config"]
    rest = requests.get(f"{server.url}/v2/models/scale/config", timeout=wire.TIMEOUT).json()
    assert config["name"] == rest["name"] and config["max_batch_size"] == rest["max_batch_size"] == 8
    assert config["dynamic_batching"]["preferred_batch_size"] == rest["dynamic_batching"]["preferred_batch_size"]
    assert config["input"][0]["data_type"] == "TYPE_FP32" and config["input"][0]["dims"] == ["4"], config
    before = client.get_inference_statistics("identity").model_stats[0]
    client.infer("identity", [tensor("x", np.ones((3, 16), np.float32))])
    after = client.get_inference_statistics("identity", "1").model_stats[0]
    assert after.inference_count - before.inference_count == 3, after
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1, after
    assert after.inference_stats.compute_infer.ns > 0 and after.batch_stats, after
    assert {"digits", "identity"} <= {entry.name for entry in client.get_inference_statistics().model_stats}
    fails(lambda: client.get_inference_statistics("nothing"), "NOT_FOUND")
    fails(lambda: client.get_model_config("broken"), "UNAVAILABLE", "broken")
    # JSON leaves out an enum's first value, KIND_AUTO, and clients (PyTriton's) read the member as Triton has it: always there.
    for name in ("digits", "scale"):
        groups = client.get_model_config(name, as_json=True)["config"]["instance_group"]
        assert groups and all(group["kind"] in ("KIND_CPU", "KIND_GPU") for group in groups), groups


def test_the_index_lists_what_is_served_and_why_not(client):
    index = {(model.name, model.version): model for model in client.get_model_repository_index().models}
    assert index["digits", "1"].state == "READY" and index["digits", "1"].reason == ""
    broken = next(model for (name, _), model in index.items() if name == "broken")
    assert broken.state == "UNAVAILABLE" and broken.reason, broken


def test_what_is_not_built_says_so(client, channel):
    fails(lambda: client.register_cuda_shared_memory("r", b"", 0, 1), "UNIMPLEMENTED", "CudaSharedMemoryRegister")
    other = channel.unary_unary("/other.Service/Call")
    fails(lambda: other(b"", timeout=SECONDS), "UNIMPLEMENTED", "/other.Service/Call")


def test_the_service_has_torchserves_name_as_well(server, channel):
    service = "/org.pytorch.serve.grpc.openinference.GRPCInferenceService"

    def call(method, **members):
        request, reply = getattr(service_pb2, method + "Request"), getattr(service_pb2, method + "Response")
        send = channel.unary_unary(f"{service}/{method}", request.SerializeToString, reply.FromString)
        return send(request(**members), timeout=SECONDS)

    def counted():
        text = requests.get(server.url + "/metrics", timeout=SECONDS).text
        assert "openinference" not in text
        (line,) = [li for li in text.splitlines() if li.startswith("ocelli_http_requests_total{") and f'"{INFER}"' in li and '"200"' in li]
        return int(line.rsplit(" ", 1)[1])

    assert call("ServerLive").live and call("ServerReady").ready and call("ModelReady", name="identity").ready
    assert call("ServerMetadata").name == "ocelli" and call("ModelMetadata", name="identity").inputs[0].name == "x"
    x = np.arange(16, dtype=np.float32)
    given = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 16])
    members = {"model_name": "identity", "inputs": [given], "raw_input_contents": [x.tobytes()]}
    assert call("ModelInfer", **members).raw_output_contents == [x.tobytes()]
    before = counted()
    call("ModelInfer", **members)
    assert counted() == before + 1
    fails(lambda: call("ModelInfer", model_name="nothing"), "NOT_FOUND", "nothing")
    fails(lambda: call("ModelConfig", name="identity"), "UNIMPLEMENTED", "ModelConfig")


def test_models_are_loaded_and_unloaded_by_the_rules_of_the_rest_api(server, client, start_server, models, tmp_path):
    fails(lambda: client.load_model("digits"), "PERMISSION_DENIED", "repository_mode")
    shutil.copytree(models / "scale", tmp_path / "scale")
    shutil.copytree(models / "identity", tmp_path / "identity")
    token = "a-token-of-more-than-sixteen"
    server = start_server(tmp_path, repository_mode="explicit", admin_token=token)
    headers = {"authorization": f"Bearer {token}"}
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        fails(lambda: client.unload_model("scale"), "PERMISSION_DENIED", "authorization")
        for _ in range(2):
            client.unload_model("scale", headers=headers)
        client.unload_model("nothing", headers=headers)
        # As KServe's definition has it: the model's name is the first field.
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub, metadata = service_pb2_grpc.GRPCInferenceServiceStub(channel), list(headers.items())
            load = service_pb2.RepositoryModelLoadRequest(repository_name="scale")
            stub.RepositoryModelLoad(load, metadata=metadata, timeout=SECONDS)
            assert client.is_model_ready("scale")
            unload = service_pb2.RepositoryModelUnloadRequest(repository_name="scale")
            stub.RepositoryModelUnload(unload, metadata=metadata, timeout=SECONDS)
        assert not client.is_model_ready("scale") and client.is_model_ready("identity")
        client.load_model("scale", headers=headers, config='{"max_batch_size": 4}')
        assert client.get_model_config("scale").config.max_batch_size == 4
        fails(lambda: client.load_model("nothing", headers=headers), "INVALID_ARGUMENT", "failed to load", "nothing")
        fails(lambda: client.load_model("scale", headers=headers, config="{"), "INVALID_ARGUMENT")
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            load = service_pb2.RepositoryModelLoadRequest(model_name="scale")
            load.parameters["config"].bytes_param = b"{}"
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError, match="the parameter config must be a string that holds JSON"):
                stub.RepositoryModelLoad(load, metadata=list(headers.items()), timeout=SECONDS)
        (tmp_path / "scale" / "config.pbtxt").write_text("max_batchsize: 4")
        fails(lambda: client.load_model("scale", headers=headers), "INVALID_ARGUMENT", "max_batchsize")
        assert client.is_model_ready("scale"), "what served goes on"
        index = client.get_model_repository_index().models
        assert {(m.name, m.version): m.state for m in index}["scale", "3"] == "READY", index
    assert server.stop() == 0


@pytest.mark.parametrize("call", ["ModelConfig", "ModelMetadata", "ModelStatistics", "RepositoryIndex", "SystemSharedMemoryStatus"])
def test_descriptions_that_nobody_reads_keep_further_ones_out_and_nothing_else(server, stub, call):
    header = [("content-type", "application/grpc"), ("te", "trailers")]
    request = {"RepositoryIndex": "RepositoryIndexRequest", "SystemSharedMemoryStatus": "SystemSharedMemoryStatusRequest"}
    request = getattr(service_pb2, request.get(call, f"{call}Request"))()
    if call in ("ModelConfig", "ModelMetadata"):
        request.name = "identity"
    body = request.SerializeToString()
    streams = set(range(1, 512, 2))
    with http2.Connection(server.grpc_port, 0) as connection:
        for stream in streams:
            connection.post(stream, f"/inference.GRPCInferenceService/{call}", header, struct.pack(">BI", 0, len(body)) + body)
        begun = set()
        while begun != streams:
            kind, flags, stream, _ = connection.receive()
            assert kind == http2.HEADERS and not flags & http2.END_STREAM, (kind, flags)
            begun.add(stream)
        told = "the number of answers under way that describe models is full (256)"
        fails(lambda: getattr(stub, call)(request, timeout=SECONDS), "RESOURCE_EXHAUSTED", told)
        assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=SECONDS).ready
    until(lambda: described(stub, call, request), SECONDS, "descriptions are answered again")


def described(stub, call, request):
    """Whether a call of this kind is answered; no other error than that there are too many is passed over."""
    try:
        return getattr(stub, call)(request, timeout=SECONDS) is not None
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
        return False


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_a_symbol_that_there_is_not_does_not_end_the_questions_however_slowly_they_come(start_server, only_digits, version):
    server = start_server(only_digits, body_timeout_ms=1000)
    names = [b"inference.Nothing", b"inference.ModelConfig", b"inference.nothing"]

    def questions():
        for name in names:
            yield b"\x22" + bytes([len(name)]) + name
            # Whoever types them is slower than a body may be: two of those have been given up meanwhile, one after the other.
            for _ in range(2 if name == names[1] else 0):
                with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as stalled:
                    stalled.sendall(b"POST /predictions/digits HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc")
                    assert stalled.recv(1 << 16).startswith(b"HTTP/1.1 408 ")

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        ask = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
        replies = list(ask(questions(), timeout=SECONDS))
    # 4 is a list of files, 7 an error.
    answers = [{field.field_number for field in parts(reply)} & {4, 7} for reply in replies]
    assert answers == [{7}, {4}, {7}], replies
    assert server.stop() == 0


def reflected(channel, symbol):
    """The definitions that the server has of a symbol's file and what it imports."""
    ask = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    name = symbol.encode()
    (reply,) = ask(iter([b"\x22" + bytes([len(name)]) + name]), timeout=SECONDS)
    fields = unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(reply))
    # A list of files has the form of a set of files.
    (files,) = [field.data for field in fields if field.field_number == 4]
    return descriptor_pb2.FileDescriptorSet.FromString(
        b"".join(b"\x0a" + varint(len(f.data)) + f.data for f in parts(files))
    )


def parts(fields):
    """The fields of a message that was not parsed."""
    if isinstance(fields, bytes):
        return unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(fields))
    return fields


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def layout(message, prefix=""):
    """Every field of a message and of those in it: number, type and whether it is a list."""
    found = {}
    for field in message.field:
        found[f"{prefix}{message.name}.{field.name}"] = (field.number, field.type, field.label, field.type_name)
    for nested in message.nested_type:
        found |= layout(nested, f"{prefix}{message.name}.")
    return found


@pytest.mark.parametrize("symbol", ["inference.GRPCInferenceService", "inference.ModelConfig"])
def test_the_definition_is_that_of_tritons_clients(channel, symbol):
    ours, theirs, enums = {}, {}, []
    for file in reflected(channel, symbol).file:
        for own in file.message_type:
            ours |= layout(own)
        enums += [(enum.name, [(v.name, v.number) for v in enum.value]) for enum in file.enum_type]
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for their in file.message_type:
            theirs |= layout(their)
        for enum in file.enum_type:
            if enum.name in dict(enums):
                assert (enum.name, [(v.name, v.number) for v in enum.value]) in enums
    # Triton's answers to these are empty; KServe's clients read what its own servers say.
    for message, told in (("Load", "isLoaded"), ("Unload", "isUnloaded")):
        own = {name: field for name, field in ours.items() if name.startswith(f"RepositoryModel{message}Response.")}
        if own:
            prefix = f"RepositoryModel{message}Response"
            assert own == {f"{prefix}.model_name": (1, 9, 1, ""), f"{prefix}.{told}": (2, 8, 1, "")}
        ours = {name: field for name, field in ours.items() if name not in own}
    assert len(ours) > 60 and all(theirs.get(name) == field for name, field in ours.items()), [
        (name, field, theirs.get(name)) for name, field in ours.items() if theirs.get(name) != field
    ]
    # Nothing is missing in a message that we have.
    names = {name.rsplit(".", 1)[0] for name in ours}
    assert {name for name in theirs if name.rsplit(".", 1)[0] in names} == ours.keys()


# --- Inference ------------------------------------------------------------------------------------------------------


def test_the_answer_is_that_of_the_rest_api(server, client):
    rng = np.random.default_rng(3)
    x = rng.random((3, 1, 32, 32), np.float32)
    reply = client.infer("digits", [tensor("image", x)], request_id="mine")
    assert (reply.as_numpy("logits") == wire.infer(server, "digits", {"image": x})["logits"]).all()
    response = reply.get_response()
    assert (response.id, response.model_name, response.model_version) == ("mine", "digits", "1"), response
    assert response.raw_output_contents and not response.outputs[0].HasField("contents"), response


TYPED = {
    "BOOL": ("bool_contents", [True, False]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [0, 65535]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-32768, 32767]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
    "FP32": ("fp32_contents", [-1.5, 0.25]),
    "FP64": ("fp64_contents", [-1e300, 1e-300]),
    "BYTES": ("bytes_contents", ["ä b".encode(), b""]),
}
NUMPY = {"BF16": ml_dtypes.bfloat16, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BOOL": np.bool_}


def raw(name, values):
    """The bytes of a tensor."""
    if name == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    return np.array(values, NUMPY.get(name, name.lower())).tobytes()


def test_every_type_goes_both_ways_raw(stub):
    request = service_pb2.ModelInferRequest(model_name="types")
    for name in make_models.TYPES:
        request.inputs.add(name=f"x_{name}", datatype=name, shape=[2])
        request.raw_input_contents.append(raw(name, TYPED.get(name, ("", [1.5, -2]))[1]))
    reply = stub.ModelInfer(request, timeout=SECONDS)
    # The model has a config.pbtxt: replies have outputs by name, as Triton's.
    sent = dict(zip(make_models.TYPES, request.raw_input_contents))
    assert [output.datatype for output in reply.outputs] == sorted(make_models.TYPES)
    assert list(reply.raw_output_contents) == [sent[name] for name in sorted(make_models.TYPES)]


def test_typed_contents_come_back_as_both_or_typed_as_asked(stub):
    values = [float(n) for n in range(16)]
    request = service_pb2.ModelInferRequest(model_name="identity")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 16]).contents.fp32_contents.extend(values)
    # Triton's clients look at the one, and those of other servers at the other.
    reply = stub.ModelInfer(request, timeout=SECONDS)
    assert list(reply.raw_output_contents) == [raw("FP32", values)]
    assert list(reply.outputs[0].contents.fp32_contents) == values
    request.parameters["binary_data_output"].bool_param = False
    reply = stub.ModelInfer(request, timeout=SECONDS)
    assert list(reply.outputs[0].contents.fp32_contents) == values and not reply.raw_output_contents
    del request.parameters["binary_data_output"]
    request.outputs.add(name="y").parameters["binary_data"].bool_param = False
    assert list(stub.ModelInfer(request, timeout=SECONDS).outputs[0].contents.fp32_contents) == values


@pytest.mark.parametrize("name", TYPED)
def test_every_type_goes_both_ways_typed(start_types, name):
    field, values = TYPED[name]
    request = service_pb2.ModelInferRequest(model_name=f"one_{name.lower()}")
    given = request.inputs.add(name="x", datatype=name, shape=[2])
    getattr(given.contents, field).extend(values)
    request.parameters["binary_data_output"].bool_param = False
    reply = start_types.ModelInfer(request, timeout=SECONDS)
    assert list(getattr(reply.outputs[0].contents, field)) == values, reply
    if name in ("INT8", "INT16", "UINT8", "UINT16"):
        getattr(given.contents, field)[0] = 70_000
        fails(lambda: start_types.ModelInfer(request, timeout=SECONDS), "INVALID_ARGUMENT", f"70000, which is no {name}")


def test_an_id_of_64_bits_is_ignored_and_a_setting_of_as_many_is_refused(stub):
    request = message("identity", "x", ONES)
    request.parameters["sequence_id"].uint64_param = 2**64 - 1
    assert stub.ModelInfer(request, timeout=SECONDS).raw_output_contents == request.raw_input_contents
    request.parameters["timeout"].uint64_param = 2**64 - 1
    fails(
        lambda: stub.ModelInfer(request, timeout=SECONDS),
        "INVALID_ARGUMENT",
        f'"timeout" is {2**64 - 1}, expected an integer of 0 or more, at most {2**63 - 1}',
    )


@pytest.mark.parametrize(
    ("element", "told"), [(b"a\xff", "is not UTF-8"), (b"a\0b", "holds a NUL, a byte of 0")], ids=["no UTF-8", "NUL"]
)
def test_what_is_no_text_is_refused_with_its_input_and_element(start_types, element, told):
    request = service_pb2.ModelInferRequest(model_name="one_bytes")
    request.inputs.add(name="x", datatype="BYTES", shape=[3])
    request.raw_input_contents.append(raw("BYTES", [b"two words", element, b""]))
    told = f'input "x" is of strings, but its element 1 {told}'
    fails(lambda: start_types.ModelInfer(request, timeout=SECONDS), "INVALID_ARGUMENT", told)


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_half_precision_is_raw_only(start_types, name):
    request = message(f"one_{name.lower()}", "x", np.array([1, 2], NUMPY[name]), name)
    assert start_types.ModelInfer(request, timeout=SECONDS).raw_output_contents == request.raw_input_contents
    request.parameters["binary_data_output"].bool_param = False
    fails(lambda: start_types.ModelInfer(request, timeout=SECONDS), "INVALID_ARGUMENT", "only raw_output_contents")
    del request.raw_input_contents[:]
    request.inputs[0].contents.fp32_contents.extend([1, 2])
    fails(lambda: start_types.ModelInfer(request, timeout=SECONDS), "INVALID_ARGUMENT", "only raw_input_contents")


@pytest.fixture(scope="module")
def start_types(start_server, tmp_path_factory):
    """A server with a model for each type, which gives back what it gets."""
    folder = tmp_path_factory.mktemp("types")
    for name, kind in make_models.TYPES.items():
        g = make_models.Graph()
        g.node("Identity", "x", output="y")
        path = folder / f"one_{name.lower()}"
        path.mkdir()
        (path / "model.onnx").write_bytes(g.bytes("one", [("x", kind, ["N"])], [("y", kind, ["N"])]))
    server = start_server(folder)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
    assert server.stop() == 0


def test_strings_by_the_client(client):
    inputs = []
    for name in make_models.TYPES:
        zeros = np.zeros(2, NUMPY.get(name, name.lower() if name != "BYTES" else "object"))
        inputs.append(tensor(f"x_{name}", np.array([b"two words", b""], np.object_) if name == "BYTES" else zeros, name))
    reply = client.infer("types", inputs, outputs=[triton.InferRequestedOutput("y_BYTES")])
    assert reply.as_numpy("y_BYTES").tolist() == [b"two words", b""]


def test_encoded_images_are_decoded_as_posted_files_are(client, digits):
    files = [data for _, data, _ in digits[:3]]
    reply = client.infer("digits", [tensor("image", np.array(files, np.object_), "BYTES")])
    assert [str(best) for best in reply.as_numpy("logits").argmax(1)] == [digit for *_, digit in digits[:3]]


def test_encoded_images_come_in_a_stream(server, digits):
    answers = queue.Queue()
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for name, image, _ in digits:
            client.async_stream_infer("digits", [tensor("image", np.array([image], np.object_), "BYTES")], request_id=name)
        client.async_stream_infer("digits", [tensor("image", np.array([b"no image"], np.object_), "BYTES")])
        got = [answers.get(timeout=SECONDS) for _ in range(len(digits) + 1)]
        client.stop_stream()
    best = [str(result.as_numpy("logits").argmax()) for result, error in got[:-1] if error is None]
    assert best == [digit for _, _, digit in digits]
    assert "image 0: not an image" in got[-1][1].message()


def test_classes_instead_of_values(client):
    x = np.zeros((1, 16), np.float32)
    x[0, [3, 5]] = 2, 9
    outputs = [triton.InferRequestedOutput("y", class_count=2)]
    assert client.infer("identity", [tensor("x", x)], outputs=outputs).as_numpy("y").tolist() == [
        [b"9.000000:5", b"2.000000:3"]
    ]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_messages_are_read(client, algorithm):
    x = np.arange(64_000, dtype=np.float32).reshape(-1, 16)
    assert (client.infer("identity", [tensor("x", x)], compression_algorithm=algorithm).as_numpy("y") == x).all()


def test_a_large_tensor_goes_both_ways(client):
    x = np.random.default_rng(5).random((500_000, 16), np.float32)
    # Thousands of batches: on a busy machine they take longer than a request may by default.
    reply = client.infer("identity", [tensor("x", x)], timeout=SECONDS * 1_000_000)
    assert (reply.as_numpy("y") == x).all()


def test_a_fitter_is_asked_in_the_same_way(start_server, tmp_path):
    (tmp_path / "fit").mkdir()
    (tmp_path / "fit" / "model.toml").write_text('engine = "gauss-mle"\n')
    server = start_server(tmp_path)
    y, x = np.mgrid[:7, :7]
    roi = (5 + 900 * np.exp(-((x - 3.2) ** 2 + (y - 2.9) ** 2) / (2 * 1.3**2)) / (2 * np.pi * 1.3**2)).astype(np.float32)
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        reply = client.infer("fit", [tensor("rois", roi[None])], parameters={"sigma_px": 1.3})
        fitted = {name: reply.as_numpy(name) for name in ("x", "y")}
    assert abs(fitted["x"][0] - 3.2) < 0.1 and abs(fitted["y"][0] - 2.9) < 0.1, fitted
    assert server.stop() == 0


# --- Calls side by side ---------------------------------------------------------------------------------------------


def test_asynchronous_calls(client):
    answers = queue.Queue()
    for i in range(8):
        x = np.full((1, 16), i, np.float32)
        client.async_infer("identity", [tensor("x", x)], lambda result, error: answers.put((result, error)), request_id=str(i))
    for _ in range(8):
        result, error = answers.get(timeout=SECONDS)
        assert error is None and (result.as_numpy("y") == int(result.get_response().id)).all()


def test_the_asyncio_client(server):
    import asyncio

    async def ask():
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            assert await client.is_server_ready() and await client.is_model_ready("identity")
            reply = await client.infer("identity", [tensor("x", ONES)])
            assert (reply.as_numpy("y") == ONES).all()

            async def requests_():
                for i in range(5):
                    yield {"model_name": "identity", "inputs": [tensor("x", ONES * i)], "request_id": str(i)}

            got = [(result, error) async for result, error in client.stream_infer(requests_())]
            assert [(r.get_response().id, e) for r, e in got] == [(str(i), None) for i in range(5)]

    asyncio.run(ask())


def test_a_stream_answers_in_order_and_goes_on_after_an_error(server):
    answers = queue.Queue()
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for i in range(200):
            name = "z" if i == 100 else "x"
            client.async_stream_infer(
                "identity", [tensor(name, ONES * i)], request_id=str(i), enable_empty_final_response=i % 2 == 0
            )
        for i in range(200):
            result, error = answers.get(timeout=SECONDS)
            if i == 100:
                assert result is None and "no input" in error.message(), (result, error)
                continue
            assert error is None, error
            response = result.get_response()
            assert response.id == str(i) and (result.as_numpy("y") == i).all()
            assert response.parameters["triton_final_response"].bool_param
        client.stop_stream()
    assert answers.empty()


def test_a_stream_ends_by_the_status_of_what_failed_where_its_caller_asks_for_that(server):
    answers = queue.Queue()
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)), headers={"triton_grpc_error": "true"})
        for name in ("x", "z", "x"):
            client.async_stream_infer("identity", [tensor(name, ONES)])
        result, error = answers.get(timeout=SECONDS)
        assert error is None and (result.as_numpy("y") == ONES).all()
        result, error = answers.get(timeout=SECONDS)
        assert result is None and "INVALID_ARGUMENT" in error.status() and "no input" in error.message(), error
        client.stop_stream()
    assert answers.empty(), "it has ended"


def test_a_stream_tells_which_request_failed(stub):
    requests_ = [message("nothing", "x", ONES, id="a"), message("identity", "x", ONES, id="b")]
    first, second = stub.ModelStreamInfer(iter(requests_), timeout=SECONDS)
    assert "unknown model" in first.error_message and first.infer_response.id == "a", first
    assert not second.error_message and second.infer_response.id == "b", second


def test_a_caller_that_goes_away_is_not_served(server, client):
    busy = np.full((1, 1), 200, np.float32)

    def counted():
        return np.array([outcomes(server, "slow", outcome) for outcome in ("ok", "cancelled")])

    def three_go_away():
        before, ended = counted(), []
        calls = [client.async_infer("slow", [tensor("x", busy)], lambda _, error: ended.append(error)) for _ in range(3)]
        until(lambda: gauge(server, "ocelli_requests_in_flight") >= 3 or ended, SECONDS, "three calls are in flight")
        for call in calls:
            call.cancel()
        until(lambda: sum(counted() - before) >= 3, SECONDS, "all three are counted")
        return (counted() - before).tolist() == [0, 3]

    # Where this process is held up for long enough, they are answered before they can go away.
    until(three_go_away, SECONDS, "all three are counted as cancelled")


@pytest.mark.parametrize("sent", [b"", bytes(5)[:3], struct.pack(">BI", 0, 1000) + b"abc"])
@pytest.mark.parametrize("path", ["ModelInfer", "ModelMetadata"])
def test_a_caller_that_goes_away_before_its_message_has_come_is_counted_as_that(start_server, only_digits, path, sent):
    server = start_server(only_digits)
    call = f"/inference.GRPCInferenceService/{path}"
    headers = [("content-type", "application/grpc"), ("te", "trailers")]

    def counted(code):
        text = requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text
        return f'ocelli_http_requests_total{{code="{code}",method="POST",route="{call}"}} 1' in text

    with http2.Connection(server.grpc_port, 1 << 20) as connection:
        connection.post(1, call, headers, sent, end=False)
        connection.send(http2.RST_STREAM, 0, 1, struct.pack(">I", http2.CANCEL))
        until(lambda: counted(499) or counted(500), SECONDS, "it is counted")
    assert counted(499) and not counted(500)


# --- Limits and errors ----------------------------------------------------------------------------------------------


def test_a_deadline_is_kept_by_the_server_and_by_the_client(client, stub):
    assert client.infer("identity", [tensor("x", ONES)], timeout=30).as_numpy("y").tolist() == ONES.tolist(), "seconds are meant"
    busy = np.full((1, 1), 200, np.float32)
    fails(lambda: client.infer("slow", [tensor("x", busy)], timeout=1000), "DEADLINE_EXCEEDED", "deadline")
    fails(lambda: client.infer("slow", [tensor("x", busy)], client_timeout=0.01), "DEADLINE_EXCEEDED")
    # That deadline reaches the server as well: told as text of its own, it is the server alone who keeps it.
    metadata = [("grpc-timeout", "20m")]
    late = message("slow", "x", busy)

    def kept_by_the_server(**call):
        error = fails(lambda: stub.ModelInfer(late, **call), "DEADLINE_EXCEEDED", "the deadline ")
        return "of 20 ms" in error.details()

    # On a machine that is busy it may be over before the request is queued, which has another text.
    until(lambda: kept_by_the_server(metadata=metadata), SECONDS, "it is told which deadline it was")
    # The header alone, to which no client holds itself: the answer is the server's.
    call = {"metadata": [("timeout", "20")], "timeout": SECONDS}
    until(lambda: kept_by_the_server(**call), SECONDS, "it is told which deadline it was")


BAD = {
    "unknown model": (lambda r: setattr(r, "model_name", "nothing"), "NOT_FOUND", "unknown model: 'nothing'"),
    "unknown version": (lambda r: setattr(r, "model_version", "9"), "NOT_FOUND", "identity/9"),
    "unavailable": (lambda r: setattr(r, "model_name", "broken"), "UNAVAILABLE", "broken"),
    "input name": (lambda r: setattr(r.inputs[0], "name", "z"), "INVALID_ARGUMENT", "no input \"z\""),
    "datatype": (lambda r: setattr(r.inputs[0], "datatype", "FLOAT"), "INVALID_ARGUMENT", "expected one of BOOL"),
    "other datatype": (lambda r: setattr(r.inputs[0], "datatype", "FP64"), "INVALID_ARGUMENT", "FP64, expected FP32"),
    "shape": (lambda r: r.inputs[0].shape.__setitem__(1, 17), "INVALID_ARGUMENT", "shape [1, 17], expected [-1, 16]"),
    "negative": (lambda r: r.inputs[0].shape.__setitem__(0, -1), "INVALID_ARGUMENT", "extents are 0 or more"),
    "no elements": (lambda r: r.inputs[0].shape.__setitem__(0, 0), "INVALID_ARGUMENT", "has 16 elements (64 bytes), expected 0"),
    "too few bytes": (lambda r: r.raw_input_contents.__setitem__(0, b"1234"), "INVALID_ARGUMENT", "(4 bytes), expected 16"),
    "too many raw": (lambda r: r.raw_input_contents.append(b""), "INVALID_ARGUMENT", "2 entries for 1 inputs"),
    "no data": (lambda r: r.raw_input_contents.pop(), "INVALID_ARGUMENT", "neither contents nor"),
    "both": (lambda r: r.inputs[0].contents.fp32_contents.append(1), "INVALID_ARGUMENT", "both contents and"),
    "twice": (
        lambda r: (r.inputs.append(r.inputs[0]), r.raw_input_contents.append(r.raw_input_contents[0])),
        "INVALID_ARGUMENT",
        "given twice",
    ),
    "missing": (lambda r: (r.inputs.pop(), r.raw_input_contents.pop()), "INVALID_ARGUMENT", "input \"x\" is missing"),
    "output": (lambda r: r.outputs.add(name="q"), "INVALID_ARGUMENT", "no output \"q\""),
    "reserved": (lambda r: setattr(r.parameters["triton_x"], "bool_param", True), "INVALID_ARGUMENT", "triton_x"),
    "no value": (lambda r: r.parameters["a"].ClearField("bool_param"), "INVALID_ARGUMENT", "\"a\" of the request has no value"),
    "bad timeout": (lambda r: setattr(r.parameters["timeout"], "string_param", "x"), "INVALID_ARGUMENT", "\"timeout\" is \"x\""),
    "large number": (
        lambda r: setattr(r.parameters["priority"], "uint64_param", 2**64 - 1),
        "INVALID_ARGUMENT",
        "expected an integer of 0 or more",
    ),
    "shared memory": (
        lambda r: setattr(r.inputs[0].parameters["shared_memory_region"], "string_param", "r"),
        "INVALID_ARGUMENT",
        "1 entries for 0 inputs",
        "not in shared memory",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_are_refused_with_the_reason(stub, what):
    change, code, *told = BAD[what]
    request = message("identity", "x", ONES)
    change(request)
    fails(lambda: stub.ModelInfer(request, timeout=SECONDS), code, *told)


def test_bytes_that_are_no_message_are_refused(channel):
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    for junk in (b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", bytes(range(256))):
        fails(lambda junk=junk: call(junk, timeout=SECONDS), "INTERNAL")


INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
ENTRIES = {"inputs": b"\x2a\0", "outputs": b"\x32\0", "raw contents": b"\x3a\0", "parameters of an input": b"\x2a\2\x22\0"}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("packing", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_of_a_great_many_entries_is_refused_before_it_is_read(channel, entry, packing):
    junk = b"\x0a\x08identity" + ENTRIES[entry] * 1_000_000
    call = channel.unary_unary(INFER)
    told = "000000 inputs, outputs, raw contents and parameters, more than the 4096"
    fails(lambda: call(junk, timeout=SECONDS, compression=packing), "INVALID_ARGUMENT", told)
    stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    fails(lambda: next(stream(iter([junk]), timeout=SECONDS, compression=packing)), "INVALID_ARGUMENT", told)


def test_elements_that_take_more_than_their_bytes_count_before_they_are_read(start_server, only_digits):
    server = start_server(only_digits, body_bytes_max="8MiB", in_flight_bytes_max="16MiB")
    # An empty text is two bytes there, and 32 as long as it is held.
    request = service_pb2.ModelInferRequest(model_name="digits")
    request.inputs.add(name="image", datatype="BYTES", shape=[1_000_000, 1]).contents.bytes_contents.extend([b""] * 1_000_000)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        told = f"more than the limit of {16 << 20}; raise it with in_flight_bytes_max"
        fails(lambda: stub.ModelInfer(request, timeout=SECONDS), "RESOURCE_EXHAUSTED", told)
        fails(lambda: next(stub.ModelStreamInfer(iter([request]), timeout=SECONDS)), "RESOURCE_EXHAUSTED", told)
        until(lambda: gauge(server, "ocelli_in_flight_bytes") == 0, SECONDS, "no bytes are in flight")
        one = np.zeros((1, 1, 32, 32), np.float32)
        assert stub.ModelInfer(message("digits", "image", one), timeout=SECONDS).raw_output_contents
    assert server.stop() == 0


TEXTS_IN_FLIGHT = 16 << 20


@pytest.fixture(scope="module")
def of_texts(start_server, tmp_path_factory):
    """A server with a model that gives its texts back, and little room."""
    folder, kind = tmp_path_factory.mktemp("texts"), make_models.TYPES["BYTES"]
    graph = make_models.Graph()
    graph.node("Identity", "x", output="y")
    (folder / "echo").mkdir()
    (folder / "echo" / "model.onnx").write_bytes(graph.bytes("echo", [("x", kind, ["N"])], [("y", kind, ["N"])]))
    server = start_server(folder, body_bytes_max="8MiB", in_flight_bytes_max=TEXTS_IN_FLIGHT)
    yield server
    assert server.stop() == 0


def send_texts(server, over, count):
    """Sends so many empty texts; the status, as HTTP has it, and what is said."""
    x = {"name": "x", "shape": [count], "datatype": "BYTES"}
    if over in ("gRPC", "gRPC stream"):
        request = service_pb2.ModelInferRequest(model_name="echo")
        request.inputs.add(**x)
        request.raw_input_contents.append(bytes(4 * count))
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            if over == "gRPC stream":
                told = next(stub.ModelStreamInfer(iter([request]), timeout=SECONDS)).error_message
            else:
                try:
                    stub.ModelInfer(request, timeout=SECONDS)
                    told = ""
                except grpc.RpcError as error:
                    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
                    told = error.details()
        return (413 if "more than the limit" in told else 429) if told else 200, told
    path, headers = "/v2/models/echo/infer", {}
    if over == "v1":
        path, body = "/v1/models/echo:predict", json.dumps({"instances": [""] * count}).encode()
    elif over == "binary":
        head = json.dumps({"inputs": [x | {"parameters": {"binary_data_size": 4 * count}}]}).encode()
        headers, body = {"Inference-Header-Content-Length": str(len(head))}, head + bytes(4 * count)
    else:
        body = json.dumps({"inputs": [x | {"data": [""] * count}]}).encode()
    reply = requests.post(server.url + path, data=body, headers=headers, timeout=wire.TIMEOUT)
    return reply.status_code, "" if reply.ok else reply.json()["error"]


@pytest.mark.parametrize("over", ["binary", "JSON", "v1", "gRPC", "gRPC stream"])
def test_texts_count_as_what_becomes_of_them(of_texts, over):
    # A few hundred kilobytes that become 22 MB: never.
    status, told = send_texts(of_texts, over, 100_000)
    assert status == 413 and f"more than the limit of {TEXTS_IN_FLIGHT}; raise it with in_flight_bytes_max" in told, told
    # 13 MB, for which there is room while nobody else has it.
    assert send_texts(of_texts, over, 60_000) == (200, "")
    with socket.create_connection(("127.0.0.1", of_texts.port), timeout=SECONDS) as other:
        other.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 7000000\r\n\r\n" + bytes(6_900_000))
        until(lambda: gauge(of_texts, "ocelli_in_flight_bytes") >= 6_900_000, SECONDS, "another request holds its body")
        status, told = send_texts(of_texts, over, 60_000)
        assert status == 429 and "the budget for bytes in flight is full" in told, (status, told)
        assert send_texts(of_texts, over, 1000) == (200, "")
    until(lambda: gauge(of_texts, "ocelli_in_flight_bytes") == 0, SECONDS, "no bytes are in flight")
    assert send_texts(of_texts, over, 60_000) == (200, "")


def test_a_packed_message_counts_unpacked_while_its_call_has_not_ended(start_server, only_digits):
    server = start_server(only_digits)
    request = message("digits", "image", np.zeros((1, 1 << 23), np.float32))
    packed = gzip.compress(request.SerializeToString())
    headers = [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-encoding", "gzip")]
    with http2.Connection(server.grpc_port, 1 << 20) as connection:
        connection.post(1, INFER, headers, struct.pack(">BI", 1, len(packed)) + packed, end=False)
        unpacked = request.ByteSize()
        until(lambda: gauge(server, "ocelli_in_flight_bytes") >= unpacked, 30, f"{unpacked} bytes are in flight")
    until(lambda: gauge(server, "ocelli_in_flight_bytes") == 0, SECONDS, "no bytes are in flight")
    assert server.stop() == 0


def test_a_stream_holds_its_messages_for_as_long_as_they_are_in_work(start_server, only_digits):
    server = start_server(only_digits, body_bytes_max="6MiB", in_flight_bytes_max="14MiB")
    # Typed, it takes 12 MiB while it is decoded: there is no room for it twice.
    large = service_pb2.ModelInferRequest(model_name="digits")
    values = np.zeros((1024, 1, 32, 32), np.float32)
    large.inputs.add(name="image", datatype="FP32", shape=values.shape).contents.fp32_contents.extend(values.ravel())
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelInfer(large, timeout=SECONDS).outputs[0].shape == [1024, 10]
        until(lambda: gauge(server, "ocelli_in_flight_bytes") == 0, SECONDS, "no bytes are in flight")
        streams = []
        for packing in [grpc.Compression.NoCompression, grpc.Compression.Gzip]:
            sent = queue.Queue()
            stream = stub.ModelStreamInfer(iter(sent.get, None), timeout=SECONDS, compression=packing)
            streams.append((stream, sent))
            for _ in range(2):
                sent.put(large)
                reply = next(stream)
                assert not reply.error_message and reply.infer_response.outputs[0].shape == [1024, 10], reply
                until(lambda: gauge(server, "ocelli_in_flight_bytes") == 0, SECONDS, "no bytes are in flight")
        assert gauge(server, "ocelli_requests_in_flight") == 0, "both streams are open, and silent"
        for stream, sent in streams:
            sent.put(None)
            assert list(stream) == []
    assert server.stop() == 0


def test_whoever_may_not_load_is_told_before_the_message_is_read(channel):
    load = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
    fails(lambda: load(b"\xff\xff\xff", timeout=SECONDS), "PERMISSION_DENIED", "repository_mode")


@pytest.mark.parametrize("over", ["HTTP", "gRPC"])
def test_replies_are_in_flight_until_their_caller_has_made_room_for_them(start_server, models, tmp_path, digits, over):
    (tmp_path / "image-identity").symlink_to(models / "image-identity")
    server = start_server(tmp_path)
    _, image, _ = digits[0]
    if over == "HTTP":
        port, path, headers, body = server.port, "/predictions/image-identity", [], image
    else:
        request = service_pb2.ModelInferRequest(model_name="image-identity")
        request.inputs.add(name="image", datatype="BYTES", shape=[1, 1])
        request.raw_input_contents.append(struct.pack("<I", len(image)) + image)
        body = request.SerializeToString()
        port, path, body = server.grpc_port, INFER, struct.pack(">BI", 0, len(body)) + body
        headers = [("content-type", "application/grpc"), ("te", "trailers")]
    window, streams = 1000, [1, 3, 5, 7, 9]
    with http2.Connection(port, window) as connection:
        for stream in streams:
            connection.post(stream, path, headers, body)
        got = connection.begun(streams, window)
        assert gauge(server, "ocelli_requests_in_flight") == len(streams)
        assert gauge(server, "ocelli_in_flight_bytes") >= len(streams) * len(image)
        for stream in [0, *streams]:
            connection.open(stream, 1 << 30)
        got = connection.ended(got)
    if over == "HTTP":
        assert all(json.loads(data)["image"] for data in got.values())
    else:
        assert all(struct.unpack(">BI", data[:5]) == (0, len(data) - 5) for data in got.values())
    assert min(len(data) for data in got.values()) > 500_000
    until_in_flight(server, 0)
    assert server.stop() == 0


@pytest.mark.parametrize("over", ["HTTP", "gRPC"])
def test_a_reply_that_is_not_taken_ends_alone_and_gives_back_what_it_holds(start_server, models, tmp_path, digits, over):
    (tmp_path / "image-identity").symlink_to(models / "image-identity")
    server = start_server(tmp_path, reply_stall_ms=1000)
    _, image, _ = digits[0]
    if over == "HTTP":
        port, path, headers, body = server.port, "/predictions/image-identity", [], image
    else:
        request = service_pb2.ModelInferRequest(model_name="image-identity")
        request.inputs.add(name="image", datatype="BYTES", shape=[1, 1])
        request.raw_input_contents.append(struct.pack("<I", len(image)) + image)
        body = request.SerializeToString()
        port, path, body = server.grpc_port, STREAM, struct.pack(">BI", 0, len(body)) + body
        headers = [("content-type", "application/grpc"), ("te", "trailers")]
    deaf, other, kind, got = 1, 3, None, b""
    with http2.Connection(port, 1000) as connection:
        # Of gRPC, a stream that its caller has not ended.
        connection.post(deaf, path, headers, body, end=over == "HTTP")
        connection.post(other, path, headers, body[:100], end=False)
        for stream in [0, other]:
            connection.open(stream, 1 << 30)
        while kind != http2.RST_STREAM:
            kind, _, stream, payload = connection.receive()
            # Streams of gRPC have the head of their reply at once.
            assert stream == deaf or (over, kind) == ("gRPC", http2.HEADERS)
        assert (stream, payload) == (deaf, struct.pack(">I", http2.CANCEL))
        connection.post_more(other, body[100:])
        connection.send(http2.DATA, http2.END_STREAM, other, b"")
        assert len(connection.answer()) > 500_000
        until_in_flight(server, 0)
        until(lambda: gauge(server, "ocelli_in_flight_bytes") == 0, SECONDS, "no bytes are in flight")
        assert gauge(server, "ocelli_http_streams_reset_total") == 1
        assert gauge(server, 'ocelli_http_connections_ended_total{reason="stalled"}') == 0
    assert server.stop() == 0


def test_an_input_that_the_model_refuses_is_the_callers_fault(stub):
    request = message("refuse", "index", np.int64([[99]]), "INT64")
    fails(lambda: stub.ModelInfer(request, timeout=SECONDS), "INVALID_ARGUMENT", "the model refused the input")


def test_limits_are_those_of_the_rest_api(start_server, only_digits):
    server = start_server(only_digits, body_bytes_max=100_000, in_flight_bytes_max=120_000, requests_in_flight_max=2)
    image = np.zeros((1, 1, 32, 32), np.float32)
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        large = np.zeros((30, 1, 32, 32), np.float32)
        told = "more than the limit of 100000; raise it with body_bytes_max"
        fails(lambda: client.infer("digits", [tensor("image", large)]), "RESOURCE_EXHAUSTED", told)
        # Nothing but zeros: a message that is small until it is unpacked.
        fails(lambda: client.infer("digits", [tensor("image", large)], compression_algorithm="gzip"), "RESOURCE_EXHAUSTED")
        until_in_flight(server, 0)
        assert client.infer("digits", [tensor("image", image)]).as_numpy("logits").shape == (1, 10)
        until_in_flight(server, 0)
        # Streams that are silent are no requests, and there are no more of them than there may be requests.
        release = threading.Event()

        def silent():
            yield message("digits", "image", image)
            release.wait(SECONDS)

        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            streams = [stub.ModelStreamInfer(silent(), timeout=SECONDS) for _ in range(2)]
            assert not any(next(stream).error_message for stream in streams)
            until_in_flight(server, 0)
            third = stub.ModelStreamInfer(silent(), timeout=SECONDS)
            error = fails(lambda: next(third), "RESOURCE_EXHAUSTED", "the number of open streams is full (2")
            assert "retry after" in str(error)
            assert client.infer("digits", [tensor("image", image)]).as_numpy("logits").shape == (1, 10)
            release.set()
            assert all(list(stream) == [] for stream in streams)
        until_in_flight(server, 0)
        assert client.infer("digits", [tensor("image", image)]).as_numpy("logits").shape == (1, 10)
    until(lambda: gauge(server, "ocelli_in_flight_bytes") == 0, SECONDS, "no bytes are in flight")
    assert server.stop() == 0


def test_calls_that_bring_no_data_are_small_packed_or_not(stub):
    # Nothing is set aside for them, so that they are answered when everything else is refused.
    assert not stub.ModelReady(service_pb2.ModelReadyRequest(name="n" * 60_000), timeout=SECONDS).ready
    for name, packing in [("n" * 70_000, grpc.Compression.NoCompression), ("n" * 10_000_000, grpc.Compression.Gzip)]:
        request = service_pb2.ModelReadyRequest(name=name)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelReady(request, compression=packing, timeout=SECONDS)
        assert "65536" in refused.value.details(), refused.value.details()


def test_ids_and_times_are_told_beside_the_answer(stub):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = [("x-request-id", "mine.1"), ("traceparent", parent), ("priority", "0")]
    _, call = stub.ModelInfer.with_call(message("identity", "x", ONES), metadata=sent, timeout=SECONDS)
    told = dict(call.initial_metadata())
    assert told["x-request-id"] == "mine.1" and told["ocelli-device"] == "cpu", told
    assert told["traceparent"].split("-")[1] == parent.split("-")[1] and "compute;dur=" in told["server-timing"], told
    error = fails(lambda: stub.ModelInfer(message("nothing", "x", ONES), metadata=sent, timeout=SECONDS), "NOT_FOUND")
    assert dict(error.initial_metadata() + error.trailing_metadata())["x-request-id"] == "mine.1"


def test_calls_are_counted_by_name_and_code(server, stub):
    stub.ModelInfer(message("identity", "x", ONES), timeout=SECONDS)
    fails(lambda: stub.ModelInfer(message("nothing", "x", ONES), timeout=SECONDS), "NOT_FOUND")
    text = requests.get(server.url + "/metrics", timeout=wire.TIMEOUT).text
    for code in (200, 404):
        labels = f'code="{code}",method="POST",route="/inference.GRPCInferenceService/ModelInfer"'
        assert f"ocelli_http_requests_total{{{labels}}}" in text, text[:3000]
    assert outcomes(server, "identity", "ok") >= 1


def test_whoever_speaks_http_is_told_where_it_is_spoken(server):
    reply = requests.get(f"http://127.0.0.1:{server.grpc_port}/v2", timeout=wire.TIMEOUT)
    wire.problem(reply, 415, "gRPC", "listen")


@pytest.mark.parametrize(("method", "kind"), [("GET", "+proto"), ("POST", "-web"), ("POST", "-web+proto"), ("POST", "foo")])
def test_whoever_asks_as_no_client_of_grpc_does_is_refused(server, method, kind):
    code = 405 if method == "GET" else 415
    with http2.Connection(server.grpc_port, 1 << 20) as connection:
        connection.post(1, LIVE, [("content-type", f"application/grpc{kind}")], bytes(5), method=method)
        assert json.loads(connection.answer())["status"] == code


def test_a_stream_that_ends_within_a_message_has_the_answers_to_those_before(server):
    ask = message("identity", "x", ONES).SerializeToString()
    whole = struct.pack(">BI", 0, len(ask)) + ask
    headers = [("content-type", "application/grpc"), ("te", "trailers")]
    for bodies in [[whole + whole + whole[:9]], [whole, whole + whole[:3]]]:
        with http2.Connection(server.grpc_port, 1 << 20) as connection:
            connection.post(1, STREAM, headers, b"", end=False)
            for body in bodies:
                connection.send(http2.DATA, 0, 1, body)
            connection.send(http2.DATA, http2.END_STREAM, 1, b"")
            answers = connection.answer()
        lengths = []
        while answers:
            lengths.append(struct.unpack(">BI", answers[:5])[1])
            answers = answers[5 + lengths[-1] :]
        assert len(lengths) == 2, lengths


def test_answers_of_a_stream_that_nobody_takes_are_in_flight(start_server, models, tmp_path):
    (tmp_path / "identity").symlink_to(models / "identity")
    server = start_server(tmp_path)
    values = np.zeros((300, 16), np.float32)  # three fit into what may be sent at once
    ask = message("identity", "x", values).SerializeToString()
    whole = struct.pack(">BI", 0, len(ask)) + ask
    headers = [("content-type", "application/grpc"), ("te", "trailers")]
    with http2.Connection(server.grpc_port, 1000) as connection:
        connection.post(1, STREAM, headers, whole, end=False)
        # There is room for some of the first; another may be made ready behind it.
        while connection.receive()[0] != http2.DATA:
            pass
        connection.post_more(1, whole + whole)
        until(lambda: outcomes(server, "identity", "ok") == 3, SECONDS, "all are answered")
        assert gauge(server, "ocelli_requests_in_flight") >= 1
        assert gauge(server, "ocelli_in_flight_bytes") >= values.nbytes
        for stream in [0, 1]:
            connection.open(stream, 1 << 30)
        connection.send(http2.DATA, http2.END_STREAM, 1, b"")
        assert len(connection.answer()) > 3 * values.nbytes - 1000
    until_in_flight(server, 0)
    assert server.stop() == 0


def test_a_client_that_has_gone_holds_up_no_end(start_server, only_digits):
    server = start_server(only_digits, drain_delay_ms=0, drain_timeout_ms=600_000)
    headers = [("content-type", "application/grpc"), ("te", "trailers")]
    with http2.Connection(server.grpc_port, 1 << 20) as connection:
        connection.post(1, LIVE, headers, bytes(5))
        connection.answer()
        server.terminate()
        # Else it ends 40 s later, when it has not answered a PING.
        assert server.wait_exit(30) == 0


def test_a_client_on_the_port_of_rest_is_told_where_grpc_is(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "grpc_listen" in refused.value.details()


def test_a_call_that_still_comes_at_the_end_is_in_the_log_as_the_servers_doing(start_server, only_digits):
    server = start_server(only_digits, drain_delay_ms=0, drain_timeout_ms=300)
    headers = [("content-type", "application/grpc"), ("te", "trailers"), ("x-request-id", "cut-off")]
    with http2.Connection(server.grpc_port, 1 << 20) as connection:
        connection.post(1, "/inference.GRPCInferenceService/ModelInfer", headers, b"\0\0\0\1\0abc", end=False)
        until_in_flight(server, 1)
        server.terminate()
        # A reply of trailers alone, and not a reset.
        kind, flags, _, payload = connection.receive(may_go=True)
        assert (kind, flags & http2.END_STREAM) == (http2.HEADERS, http2.END_STREAM), (kind, flags, payload)
        assert server.wait_exit() == 75, server.log_text()
    lines = [line for line in server.log_text().splitlines() if "cut-off" in line]
    assert len(lines) == 1 and "Unavailable" in lines[0] and "draining" in lines[0], server.log_text()


def test_a_drain_finishes_what_was_accepted_and_ends_streams(start_server, models, tmp_path):
    (tmp_path / "slow").symlink_to(models / "slow")
    server = start_server(tmp_path)
    wait = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        one = np.ones((1, 1), np.float32)

        def messages():
            yield message("slow", "x", one)
            wait.wait(SECONDS)

        stream = stub.ModelStreamInfer(messages(), timeout=SECONDS)
        assert not next(stream).error_message
        long = message("slow", "x", np.full((1, 1), 300, np.float32))

        def begun():
            call = stub.ModelInfer.future(long, timeout=SECONDS)
            until(lambda: gauge(server, "ocelli_requests_in_flight") >= 1 or call.done(), SECONDS, "it is in flight")
            return None if call.done() else call

        busy = until(begun, SECONDS, "a call is in flight")
        server.terminate()
        fails(lambda: next(stream), "UNAVAILABLE", "draining")
        assert busy.result(timeout=SECONDS).raw_output_contents
        wait.set()
    assert server.wait_exit() == 0, server.log_text()


def test_the_example_of_the_documents_works(server, capsys):
    page = (ROOT / "docs" / "api.md").read_text()
    (example,) = re.findall(r"```python\n(import numpy as np\nimport tritonclient\.grpc.*?)```", page, re.DOTALL)
    exec(example.replace("127.0.0.1:8001", f"127.0.0.1:{server.grpc_port}"), {})
    assert capsys.readouterr().out.strip() == re.search(r"# (\(.*\))$", example.strip())[1]
