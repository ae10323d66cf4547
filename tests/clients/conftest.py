"""The models folder and the server that most tests share; the server's log is printed with every failure."""

import shutil
import sys
from pathlib import Path

import described
import pytest
import tritonclient.http as triton
from browser import Visit
from server import BINARY, ROOT, Server, free_ports

sys.path.insert(0, str(ROOT / "tools"))
import make_models  # noqa: E402

EXAMPLES = ROOT / "examples"
SERVERS = []


def pytest_sessionstart():
    if not BINARY.exists():
        pytest.exit(f"{BINARY} is missing: run `make test`, or `cargo build` first", returncode=2)
    described.watch(lambda address: any(server.url == f"http://{address}" for server in SERVERS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for server in SERVERS:
            report.sections.append((f"server log ({Path(server.log).name}, its end)", server.log_text()))
    return report


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder with the examples and the generated models."""
    folder = tmp_path_factory.mktemp("models")
    for example in (EXAMPLES / "models").iterdir():
        if (example / "model.onnx").exists():
            shutil.copytree(example, folder / example.name)
    make_models.write(folder, [name for name in make_models.MODELS if name != "resnet50"])
    return folder


@pytest.fixture(scope="session")
def start_server(models, tmp_path_factory):
    """Starts a server with options of its own; all are ended with the session."""
    logs = tmp_path_factory.mktemp("logs")

    def start(folder=None, **options):
        server = Server(folder or models, logs / f"server-{len(SERVERS)}.log", **options)
        SERVERS.append(server)
        return server.wait_ready()

    yield start
    for server in SERVERS:
        server.kill()


@pytest.fixture(scope="session")
def server(start_server):
    """The server that tests share as long as they do not change it. Its metrics are apart, too, as Triton's are."""
    (port,) = free_ports(1)
    server = start_server(metrics_listen=f"127.0.0.1:{port}")
    server.metrics_url = f"http://127.0.0.1:{port}/metrics"
    yield server
    assert server.stop() == 0, "the server did not end in order"


@pytest.fixture
def client(server):
    """Triton's own client, over HTTP."""
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4) as client:
        yield client


@pytest.fixture
def visit(browser, site):
    """Opens windows, on the page of the site unless told otherwise; what went wrong in them fails the test at its end."""
    visits = []

    def open_window(path="/", url=None, **options):
        visits.append(Visit(browser, url or site.url, **options))
        if path is not None:
            visits[-1].open(path)
        return visits[-1]

    yield open_window
    for each in visits:
        each.close()


@pytest.fixture(scope="session")
def only_digits(tmp_path_factory):
    """A models folder that is quick to load."""
    folder = tmp_path_factory.mktemp("only-digits")
    shutil.copytree(EXAMPLES / "models" / "digits", folder / "digits")
    return folder


@pytest.fixture(scope="session")
def digits():
    """The example pictures of digits: `(name, bytes, digit)`."""
    files = sorted((EXAMPLES / "images" / "digits").glob("*.png"))
    assert files
    return [(f.name, f.read_bytes(), f.name[0]) for f in files]
