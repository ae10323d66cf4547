"""The page as it is reached: below a path, by a name, behind a proxy that keeps control back, before there is a model, and in a browser
that keeps nothing.
"""

import shutil

import pytest
from browser import chromium
from server import ROOT, until

NAME = "ocelli.example"
TOKEN = "a-token-of-sixteen-or-more"
THREE = (ROOT / "examples" / "images" / "digits" / "3-0.png").read_bytes()
# What the files of `deploy/nginx` and `deploy/haproxy` do not pass on.
KEPT_BACK = ("/metrics", "/v2/repository/**", "/v2/devices**")


@pytest.fixture(scope="module")
def browser():
    with chromium(f"--host-resolver-rules=MAP {NAME} 127.0.0.1") as browser:
        yield browser


@pytest.fixture(scope="module")
def site(start_server, only_digits):
    server = start_server(only_digits, admin_token=TOKEN)
    yield server
    assert server.stop() == 0


def says(page, id, text):
    """Waits until this is said."""
    page.wait_for_function("([id, text]) => document.getElementById(id).textContent.includes(text)", arg=[id, text])


def test_the_page_works_below_the_base_path_with_and_without_a_slash(visit, start_server, only_digits):
    server = start_server(only_digits, base_path="/teams/vision")
    base = f"{server.url}/teams/vision"
    for address in (base, f"{base}/", f"{base}//"):
        window = visit(None, server.url)
        page = window.page
        page.goto(address)
        page.wait_for_selector("#model option", state="attached")
        assert page.url == f"{base}/", address
        window.give("drop", ("3.png", THREE))
        window.answered()
        assert page.inner_text(".classes li:first-child .name") == "3"
        page.click("footer >> text=Errors")
        page.wait_for_url(f"{base}/docs/errors")
        assert page.evaluate("getComputedStyle(document.body).margin") == "0px", "its style is there"
    assert server.stop() == 0


def test_models_are_listed_loaded_and_unloaded_by_a_name_with_the_token(visit, start_server, tmp_path, only_digits):
    shutil.copytree(only_digits, tmp_path / "models")
    server = start_server(tmp_path / "models", repository_mode="explicit", admin_token=TOKEN)
    shutil.copytree(only_digits / "digits", tmp_path / "models" / "later")
    window = visit("/#models", f"http://{NAME}:{server.port}")
    page = window.page
    page.wait_for_selector("[data-model=later]")
    assert page.locator(".model h2").all_inner_texts() == ["digits", "later"], "what is not loaded is listed as well"
    page.click("[data-control='load later']")
    says(page, "models-says", "later is not loaded: open the page by an address or as localhost, or set admin_token and show it")
    page.fill("#token", TOKEN)
    page.click("#token-form button")
    says(page, "token-told", "The token is kept")
    page.click("[data-control='load later']")
    says(page, "models-says", "later is loaded")
    assert server.status("/v2/models/later/ready") == 200
    # Without TLS, and by a name, it counts for nothing, which Chromium says.
    window.wrong = [each for each in window.wrong if "Cross-Origin-Opener-Policy" not in each]
    assert server.stop() == 0


def test_a_device_is_drained_by_who_has_the_token_whatever_loads_models(visit, site):
    page = visit("/#live").page
    page.click("[data-control='drain cpu']")
    says(page, "devices-says", "cpu stays as it is: the header authorization must be Bearer")
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    page.click("[data-control='drain cpu']")
    says(page, "devices-says", "cpu finishes what it has begun")
    page.click("[data-control='resume cpu']")
    says(page, "devices-says", "cpu may be used again")
    until(lambda: site.status("/v2/health/ready") == 200, 60, "the server is ready again")


@pytest.mark.parametrize("status", [403, 404])
def test_behind_a_proxy_that_keeps_control_back_there_are_models_and_the_rest_is_said_to_be_missing(visit, site, status):
    window = visit(None)
    page = window.page
    for path in KEPT_BACK:
        page.route(site.url + path, lambda route: route.fulfill(status=status, body="<html>"))
    window.open("/#models")
    page.wait_for_selector("[data-model=digits]")
    assert "10 labels" in page.inner_text("[data-model=digits]")
    says(page, "models-says", "1 of 1 ready. What else lies in the folder is not told here")
    page.click("nav >> text=Live")
    says(page, "live-says", f"Metrics are not passed on here: /metrics has status {status}")
    assert page.locator("#view-live h2:visible, #traffic:visible").count() == 0
    assert page.locator("#health[data-state=good]").count() == 1


def test_a_page_that_is_open_before_there_is_a_model_takes_notice_of_it(visit, site):
    for act in ("wait", "drop"):
        window = visit(None)
        page = window.page
        models = f"{site.url}/v2/models"
        page.route(models, lambda route: route.fulfill(json={"models": [], "repository_mode": "none"}))
        page.goto(site.url)
        says(page, "model-says", "No model is ready")
        page.unroute(models)
        if act == "drop":
            window.give("drop", ("3.png", THREE))
            window.answered()
            assert page.inner_text(".classes li:first-child .name") == "3"
        page.wait_for_selector("#model option", state="attached")
        says(page, "model-says", "It says what an image shows")


def test_a_page_that_is_open_takes_notice_when_the_server_has_become_ready(visit, site):
    window = visit(None)
    page = window.page
    health, models = f"{site.url}/v2/health/ready", f"{site.url}/v2/models"
    loading = {"name": "first", "version": "1", "state": "READY", "reason": "", "task": "classify"}
    page.route(models, lambda route: route.fulfill(json={"models": [loading], "repository_mode": "none"}))
    page.route(health, lambda route: route.fulfill(status=503, json={"error": "models are loading"}))
    window.open("/")
    says(page, "health", "models are loading")
    assert page.locator("#model option").all_inner_texts() == ["first"]
    page.unroute(models)
    page.unroute(health)
    page.wait_for_selector("#model option[value=digits]", state="attached")


def test_a_browser_that_keeps_nothing_shows_everything(visit, site):
    window = visit(None)
    page = window.page
    window.context.add_init_script(
        "Object.defineProperty(window, 'sessionStorage', { get() { throw new DOMException('Access is denied.', 'SecurityError'); } })"
    )
    window.open("/")
    page.select_option("#model", "digits")
    window.give("drop", ("3.png", THREE))
    window.answered()
    page.click("nav >> text=Models")
    page.wait_for_selector("[data-model=digits]")
    page.click("summary:has-text('Admin token')")
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    says(page, "token-told", "The token is kept")
    page.click("nav >> text=Live")
    page.click("[data-control='drain cpu']")
    says(page, "devices-says", "cpu finishes what it has begun")
    page.click("[data-control='resume cpu']")
    says(page, "devices-says", "cpu may be used again")
    until(lambda: site.status("/v2/health/ready") == 200, 60, "the server is ready again")


def test_long_names_do_not_scroll_a_telephone_sideways(visit, start_server, tmp_path, only_digits):
    name = "m" * 64
    shutil.copytree(only_digits / "digits", tmp_path / "models" / name)
    server = start_server(tmp_path / "models")
    window = visit(url=server.url, viewport={"width": 320, "height": 640})
    page = window.page
    window.give("drop", (f"{'f' * 200}.png", THREE))
    window.answered()
    assert name in page.inner_text("#asking") and name in page.inner_text(".card > header p")
    for view, there in (("try", ".classes"), ("live", ".device"), ("models", ".model")):
        page.goto(f"{server.url}/#{view}")
        page.wait_for_selector(there)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, view
    assert server.stop() == 0
