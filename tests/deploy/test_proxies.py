"""The proxies: their files are taken, agree with the server's options, and lose nothing while replicas are restarted."""

import http.server
import re
import threading

import common
import pytest
import requests
from common import DEPLOY
from proxies import Proxy
from rolling_restart import restart_in_turn, shipped
from server import free_ports

NGINX = (DEPLOY / "nginx" / "ocelli.conf").read_text()
HAPROXY = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
OPTIONS = common.Options().defaults


def seconds(text, pattern):
    """A time that a file sets."""
    number, unit = re.search(pattern + r" (\d+)(s|m|h)", text).groups()
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]


def test_proxies_close_idle_connections_before_the_server_does():
    idle = int(OPTIONS["idle_timeout_ms"]) / 1000
    assert seconds(NGINX, "keepalive_timeout") < idle


def test_proxies_wait_as_long_as_a_request_may_take():
    longest = int(OPTIONS["timeout_ms_max"]) / 1000
    assert seconds(NGINX, "proxy_read_timeout") > longest and seconds(HAPROXY, "timeout server") > longest


def test_proxies_let_callers_pause_as_long_as_the_server_does():
    longest = int(OPTIONS["body_timeout_ms"]) / 1000
    # Of all locations, and of each of the two that pass bodies on.
    (before,) = re.findall(r"^    client_body_timeout (\d+)s;", NGINX, re.MULTILINE)
    sent = re.findall(r"proxy_send_timeout (\d+)s;", NGINX)
    assert len(sent) == NGINX.count("proxy_pass ") == 2
    assert min(map(int, [before, *sent])) > longest and seconds(HAPROXY, "timeout client") > longest


def test_proxies_take_bodies_as_large_as_the_server_does():
    (limit,) = re.findall(r"^    client_max_body_size (\d+)m;", NGINX, re.MULTILINE)
    assert int(limit) << 20 == common.size(OPTIONS["body_bytes_max"])


def test_a_drain_lasts_longer_than_haproxy_takes_to_notice():
    interval, falls = re.search(r"check inter (\d+)s fall (\d+)", HAPROXY).groups()
    assert int(interval) * int(falls) < int(shipped()[0]["drain_delay_ms"]) / 1000


class Replica(http.server.BaseHTTPRequestHandler):
    """Says 503 of one model, as a replica does while it is loaded or cannot be."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(503 if "broken" in self.path else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_model_that_is_not_ready_takes_no_other_along(tmp_path, name):
    common.tool(name)
    replicas = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Replica) for _ in range(2)]
    for replica in replicas:
        threading.Thread(target=replica.serve_forever, daemon=True).start()
    (port,) = free_ports(1)
    proxy = Proxy(name, tmp_path / name, port, [replica.server_port for replica in replicas]).wait()
    try:
        statuses = lambda model: [requests.get(f"http://127.0.0.1:{port}/v2/models/{model}", timeout=20).status_code for _ in range(5)]
        assert statuses("broken") == [503] * 5
        assert statuses("good") == [200] * 5
    finally:
        proxy.stop()
        for replica in replicas:
            replica.shutdown()


def test_no_request_is_lost_while_replicas_are_restarted_in_turn(tmp_path):
    for proxy in ("nginx", "haproxy"):
        common.tool(proxy)
    loads = restart_in_turn(tmp_path, requests=1000, callers=3, rate=60, settle=6)
    for name, load in loads.items():
        assert not load.lost, f"through {name}, {len(load.lost)} of {load.sent}:\n" + "\n".join(load.lost[:20])
