"""nginx and HAProxy with the files of `deploy/`, in which only the addresses are replaced."""

import socket
import subprocess
import time

import common
from common import DEPLOY


def text(file, port, replicas):
    """A shipped file with the addresses of a test: where to listen, and the replicas' ports."""
    out = (DEPLOY / file).read_text()
    swaps = {"listen 80;": f"listen 127.0.0.1:{port};", "bind :80": f"bind 127.0.0.1:{port}"}
    swaps |= {f" ocelli-{i}:8000": f" 127.0.0.1:{replica}" for i, replica in enumerate(replicas, 1)}
    for old, new in swaps.items():
        out = out.replace(old, new)
    assert ":8000" not in out and ":80\n" not in out, f"{file} has another form"
    return out


class Proxy:
    """A running proxy. Ended by `stop`."""

    def __init__(self, name, folder, port, replicas):
        folder.mkdir()
        self.name, self.port, self.log = name, port, folder / "log"
        if name == "nginx":
            (folder / "ocelli.conf").write_text(text("nginx/ocelli.conf", port, replicas))
            places = "".join(
                f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            config = folder / "nginx.conf"
            config.write_text(
                f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr warn;\n"
                f"events {{ worker_connections 4096; }}\n"
                f"http {{\naccess_log off;\n{places}include {folder}/ocelli.conf;\n}}\n"
            )
            command = [common.tool("nginx"), "-p", folder, "-e", "stderr", "-c", config]
            checked = [*command, "-t"]
        else:
            config = folder / "haproxy.cfg"
            config.write_text(text("haproxy/haproxy.cfg", port, replicas))
            command = [common.tool("haproxy"), "-db", "-f", config]
            checked = [*command, "-c"]
        common.run(*checked)
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def wait(self):
        """Returns once it listens."""
        deadline = time.monotonic() + 20
        while True:
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log.read_text()}"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                assert time.monotonic() < deadline, f"{self.name} does not listen"
                time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=20)
