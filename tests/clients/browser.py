"""A headless Chromium that reaches nothing but the server under test, and what a page in it did wrong.

Takes the machine's own Chromium (`CHROMIUM` names another one). Without one, tests are skipped and say so, unless
`PROMISED_TOOLS` says that there is one.
"""

import base64
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright
from server import ROOT

# Where pictures of the page go: to be looked at after a change.
SHOTS = Path(os.environ.get("PAGE_SHOTS", ROOT / "target" / "page"))
TIMEOUT_MS = 60_000  # only bounds a page that hangs; the dev profile is slow on a busy machine
NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable():
    """Chromium's path; skips the test where there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        why = "Chromium is missing, so the page is NOT checked: install it (apt-get install chromium)"
        assert "chromium" not in os.environ.get("PROMISED_TOOLS", "").split(), why
        pytest.skip(why)
    return found


@contextmanager
def chromium(*arguments):
    """The browser. It belongs to this thread, and no other event loop may run in it meanwhile."""
    # The sandbox does not work for root, as containers have it.
    arguments = [*arguments, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Visit:
    """A page of a server, opened in a window of its own."""

    def __init__(self, browser, url, **options):
        self.url = url
        self.outside, self.wrong = [], []
        options = {"viewport": {"width": 1280, "height": 860}, **options}
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(TIMEOUT_MS)
        self.context.route(lambda address: not address.startswith((f"{url}/", "blob:", "data:")), self._refuse)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._told)
        self.page.on("dialog", self._dialog)

    def _refuse(self, route):
        self.outside.append(route.request.url)
        route.abort()

    def _told(self, message):
        # That a request was refused is not the page's fault, and what it makes of it is looked at by tests.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong.append(message.text)

    def _dialog(self, dialog):
        self.wrong.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path="/"):
        """Opens a path of the server."""
        self.page.goto(self.url + path)
        if path == "/":
            self.page.wait_for_selector("#model option", state="attached")
        return self.page

    def give(self, how, *files):
        """Drops or pastes files (`(name, bytes)`), as somebody would from another window."""
        given = [[name, base64.b64encode(content).decode()] for name, content in files]
        self.page.evaluate(
            """([how, given]) => {
                const data = new DataTransfer();
                for (const [name, text] of given) {
                    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
                    data.items.add(new File([bytes], name));
                }
                const event = how === "drop"
                    ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })
                    : new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
                document.querySelector("#drop").dispatchEvent(event);
            }""",
            [how, given],
        )

    def answered(self, count=1):
        """Waits for the cards of all files."""
        self.page.wait_for_function(
            "count => document.querySelectorAll('#answers .card:not([aria-busy])').length === count", arg=count
        )
        return self.page

    def shot(self, name, whole=True):
        """A picture for people."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=whole, animations="disabled")

    def close(self):
        """Ends the visit; asserts that the page reached for nothing elsewhere, and that nothing in it failed."""
        self.context.close()
        assert self.outside == [], "the page reached for other servers"
        assert self.wrong == [], "the page failed, or its policy stopped something"


def violations(page, name):
    """What axe-core finds wrong."""
    results = Axe().run(page).response["violations"]
    return [f"{name}: {each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0].get('failureSummary', '')}" for each in results]
