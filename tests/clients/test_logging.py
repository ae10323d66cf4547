"""Which lines the log has, told and changed while the server runs, by Triton's clients and by curl's means."""

import io

import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as http
import wire
from grpc import insecure_channel
from PIL import Image
from server import until
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

TOKEN = "a-token-of-more-than-sixteen"
LEVELS = ["log_error", "log_warning", "log_info"]


@pytest.fixture
def alone(start_server, tmp_path, models):
    (tmp_path / "digits").symlink_to(models / "digits")
    server = start_server(tmp_path)
    yield server
    server.stop()


def lines(server, *parts):
    return [line for line in server.log_text().splitlines() if all(part in line for part in parts)]


def ready_with(server, request_id):
    requests.get(server.url + "/v2/models/digits", headers={"x-request-id": request_id}, timeout=wire.TIMEOUT)


def test_a_verbose_log_has_requests_that_go_well_until_it_is_quiet_again(alone):
    with http.InferenceServerClient(alone.url.removeprefix("http://")) as client:
        before = client.get_log_settings()
        assert before["log_filter"] == "info" and before["log_verbose_level"] == 0, before
        assert all(before[level] is True for level in LEVELS), before
        assert "logging" in client.get_server_metadata()["extensions"]
        ready_with(alone, "quiet")
        # As clients do who read all of them first.
        told = client.update_log_settings({**before, "log_verbose_level": 1})
        assert told["log_filter"] == "info,ocelli=debug" and told == client.get_log_settings()
        ready_with(alone, "verbose")
        until(lambda: lines(alone, "verbose", "answered"), 10, "the request is in the log")
        assert client.update_log_settings({"log_filter": "info"}) == before
        # Triton's own settings, as scripts have them.
        assert client.update_log_settings({**before, "log_format": "default"}) == before
        ready_with(alone, "quiet-again")
        for refused in ({"log_file": "/tmp/x"}, {"log_info": "yes"}, {"log_level": 3}, {"log_warning": False}):
            with pytest.raises(InferenceServerException, match=next(iter(refused))):
                client.update_log_settings(refused)
        with pytest.raises(InferenceServerException, match="loud"):
            client.update_log_settings({"log_filter": "ocelli=loud"})
        assert client.get_log_settings() == before
    # The lines are written in order: a later one is there, so an earlier one would be.
    requests.get(alone.url + "/v2/models/later", timeout=wire.TIMEOUT)
    until(lambda: lines(alone, "later"), 10, "the later request is in the log")
    assert not lines(alone, 'id="quiet')
    assert len(lines(alone, "another log filter")) == 2


def test_levels_go_with_those_that_are_graver_over_grpc_as_over_http(alone):
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{alone.grpc_port}") as client:
        before = client.get_log_settings(as_json=True)["settings"]
        assert before["log_filter"] == {"string_param": "info"} and before["log_info"] == {"bool_param": True}, before
        told = client.update_log_settings({"log_info": False, "log_warning": False}, as_json=True)["settings"]
        assert told["log_filter"]["string_param"] == "error"
        assert [told[level].get("bool_param", False) for level in LEVELS] == [True, False, False], told
        with pytest.raises(InferenceServerException, match="log_warning is off"):
            client.update_log_settings({"log_info": True})
        told = client.update_log_settings({"log_verbose_level": 2, "log_info": True, "log_warning": True}, as_json=True)
        assert told["settings"]["log_verbose_level"] == {"uint32_param": 2}
    reply = requests.get(alone.admin_url + "/v2/logging", timeout=wire.TIMEOUT).json()
    assert reply["log_filter"] == "info,ocelli=trace", "both listeners tell"


def test_who_may_not_control_the_server_cannot_change_its_log(start_server, tmp_path, models):
    (tmp_path / "digits").symlink_to(models / "digits")
    server = start_server(tmp_path, admin_token=TOKEN)
    url, shown = server.url + "/v2/logging", {"authorization": f"Bearer {TOKEN}"}
    change = {"log_filter": "off"}
    reply = requests.post(url, json=change, timeout=wire.TIMEOUT)
    assert reply.status_code == 403 and "admin_token" in reply.json()["error"], reply.text
    assert requests.get(url, timeout=wire.TIMEOUT).json()["log_filter"] == "info", "whoever may read"
    assert requests.post(url, json=change, headers=shown, timeout=wire.TIMEOUT).json()["log_info"] is False
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        with pytest.raises(InferenceServerException, match="admin_token"):
            client.update_log_settings({"log_info": False})
        told = client.update_log_settings({name: True for name in LEVELS}, headers=shown, as_json=True)["settings"]
        assert told["log_filter"]["string_param"] == "info"
        # Triton's client has no type for a setting of ours.
        with insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            value = service_pb2.LogSettingsRequest.SettingValue(string_param="warn,ocelli=debug")
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).LogSettings
            call(service_pb2.LogSettingsRequest(settings={"log_filter": value}), metadata=list(shown.items()))
        settings = client.get_log_settings(as_json=True)["settings"]
        assert settings["log_filter"]["string_param"] == "warn,ocelli=debug", settings
    server.stop()


def test_a_slow_request_that_goes_well_is_in_the_log_with_its_stages(start_server, tmp_path, models):
    (tmp_path / "digits").symlink_to(models / "digits")
    server = start_server(tmp_path, log_slow_ms=5)
    # 9 million pixels take far longer to decode than 5 ms.
    image = io.BytesIO()
    Image.new("RGB", (3000, 3000)).save(image, "PNG", compress_level=1)
    headers = {"x-request-id": "slow-one"}
    reply = requests.post(server.url + "/predictions/digits", image.getvalue(), headers=headers, timeout=wire.TIMEOUT)
    assert reply.status_code == 200, reply.text
    until(lambda: lines(server, "slow-one"), 10, "the request is in the log")
    [line] = lines(server, "slow-one")
    for part in ("INFO", "answered slowly", "status=200", 'timing="decode;dur=', "compute;dur=", 'device="cpu"'):
        assert part in line, line
    server.stop()
