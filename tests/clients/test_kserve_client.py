"""KServe's own Python client against the live server: both protocols over HTTP, and gRPC."""

import asyncio
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import wire

X = np.arange(32, dtype=np.float32).reshape(2, 16)


@pytest.mark.parametrize("protocol", ["v1", "v2", "grpc"])
def test_kserves_own_client_is_answered(server, digits, protocol):
    images, labels = [wire.b64(image) for _, image, _ in digits], [digit for _, _, digit in digits]
    # In a process of its own: KServe's messages of gRPC and Triton's have the same names, and a process takes one of them.
    base = f"127.0.0.1:{server.grpc_port}" if protocol == "grpc" else server.url
    script = [sys.executable, __file__, protocol, base]
    # Importing that client alone takes a minute on a machine that is busy.
    seconds_max = 5 * wire.TIMEOUT
    ran = subprocess.run(script, input=json.dumps([images, labels]), capture_output=True, text=True, timeout=seconds_max)
    assert ran.returncode == 0 and ran.stdout == "done\n", ran.stderr


def test_loads_and_unloads_are_told_as_kserves_own_server_tells_them(start_server, models, tmp_path):
    shutil.copytree(models / "scale", tmp_path / "scale")
    server = start_server(tmp_path, repository_mode="explicit")
    script = [sys.executable, __file__, "loads", f"127.0.0.1:{server.grpc_port}"]
    ran = subprocess.run(script, input="[0, 0]", capture_output=True, text=True, timeout=5 * wire.TIMEOUT)
    assert ran.returncode == 0 and ran.stdout == "done\n", ran.stderr


def request(model, binary, array=X):
    """A request of a model that takes `x` of [n, 16]."""
    from kserve import InferInput, InferRequest

    given = InferInput("x", list(array.shape), "FP32")
    given.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model_name=model, infer_inputs=[given], request_id="mine")


def pictures(images):
    """A request of the digits by their files, as a tensor of text."""
    import base64

    from kserve import InferInput, InferRequest

    given = InferInput("image", [len(images)], "BYTES")
    given.set_data_from_numpy(np.array([base64.b64decode(image) for image in images], dtype=np.object_), binary_data=True)
    return InferRequest(model_name="digits", infer_inputs=[given])


def is_x(reply, model):
    """That a reply has what `identity` was given."""
    assert reply.id == "mine" and reply.model_name == model, reply
    (output,) = reply.outputs
    assert output.datatype == "FP32" and list(output.shape) == [2, 16], reply
    np.testing.assert_array_equal(output.as_numpy(), X)


async def holds_nan(client, base):
    """That NaN arrives, which this client writes as `null`, and comes back as binary data."""
    from kserve.errors import InvalidInput
    from kserve.protocol.infer_type import RequestedOutput

    array = X.copy()
    array[0, 0] = np.nan
    asked = request("identity", False, array)
    # A reply in JSON has the bare word.
    await refused(client.infer(base, asked, model_name="identity"), InvalidInput, "Unrecognized request format")
    asked = request("identity", False, array)
    asked.request_outputs = [RequestedOutput("y", {"binary_data": True})]
    (output,) = (await client.infer(base, asked, model_name="identity")).outputs
    np.testing.assert_array_equal(output.as_numpy(), array)


async def refused(call, error, *told):
    """The words of the error that a call ends with."""
    try:
        answer = await call
    except error as caught:
        assert all(words in str(caught) for words in told), (told, str(caught))
    else:
        raise AssertionError(f"no error, but {answer}")


async def ask_v1(base, images, labels):
    """The first protocol, over HTTP."""
    from httpx import HTTPStatusError
    from kserve import InferenceRESTClient, RESTConfig

    async with InferenceRESTClient(RESTConfig(protocol="v1", retries=1)) as client:
        assert await client.is_server_live(base)
        assert await client.is_model_ready(base, "digits") and not await client.is_model_ready(base, "broken")
        await refused(client.is_model_ready(base, "nothing"), HTTPStatusError, "404", "unknown model")
        body = {"instances": [{"b64": image} for image in images]}
        answers = (await client.infer(base, body, model_name="digits"))["predictions"]
        assert [a["classes"][0]["label"] for a in answers] == labels
        rows = {"instances": [[None] + X[0, 1:].tolist()]}
        assert (await client.infer(base, rows, model_name="identity"))["predictions"] == rows["instances"]
        await refused(client.infer(base, {}, model_name="digits"), HTTPStatusError, "400", "either instances")
        await refused(client.explain(base, model_name="digits", data=body), HTTPStatusError, "501", "explain")


async def ask_v2(base, images, labels):
    """The Open Inference Protocol, over HTTP."""
    from httpx import HTTPStatusError
    from kserve import InferenceRESTClient, RESTConfig

    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=1)) as client:
        assert await client.is_server_live(base) and await client.is_server_ready(base)
        assert await client.is_model_ready(base, "digits")
        for model in ("broken", "nothing"):
            assert not await client.is_model_ready(base, model)
        for binary in (True, False):
            is_x(await client.infer(base, request("identity", binary), model_name="identity"), "identity")
        await holds_nan(client, base)
        answers = (await client.infer(base, pictures(images), model_name="digits")).outputs[0]
        assert answers.as_numpy().shape == (len(labels), 10), answers
        assert [str(best) for best in answers.as_numpy().argmax(axis=1)] == labels
        for model, array, told in (
            ("nothing", X, ("404", "unknown model")),
            ("broken", X, ("503", "unavailable")),
            ("identity", X[:, :8], ("400", "shape [2, 8]")),
        ):
            call = client.infer(base, request(model, True, array), model_name=model)
            await refused(call, HTTPStatusError, *told)


async def ask_grpc(base, images, labels):
    """The Open Inference Protocol, over gRPC."""
    from grpc import RpcError
    from kserve import InferenceGRPCClient

    async with InferenceGRPCClient(base) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("digits")
        for model in ("broken", "nothing"):
            assert not await client.is_model_ready(model)
        for binary in (True, False):
            is_x(await client.infer(request("identity", binary)), "identity")
        answers = (await client.infer(pictures(images))).outputs[0]
        assert [str(best) for best in answers.as_numpy().argmax(axis=1)] == labels
        for model, array, told in (
            ("nothing", X, ("NOT_FOUND", "unknown model")),
            ("broken", X, ("UNAVAILABLE", "unavailable")),
            ("identity", X[:, :8], ("INVALID_ARGUMENT", "shape [2, 8]")),
        ):
            await refused(client.infer(request(model, True, array)), RpcError, *told)


async def ask_loads(base, *_):
    """Loads and unloads by KServe's messages."""
    import grpc
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

    async with grpc.aio.insecure_channel(base) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for _ in range(2):
            gone = await stub.RepositoryModelUnload(messages.RepositoryModelUnloadRequest(model_name="scale"))
            assert (gone.model_name, gone.isUnloaded) == ("scale", True), gone
        there = await stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="scale"))
        assert (there.model_name, there.isLoaded) == ("scale", True), there


if __name__ == "__main__":
    asks = {"v1": ask_v1, "v2": ask_v2, "grpc": ask_grpc, "loads": ask_loads}
    asyncio.run(asks[sys.argv[1]](sys.argv[2], *json.load(sys.stdin)))
    print("done")
