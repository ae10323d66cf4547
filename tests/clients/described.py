"""Every reply that a test gets through `requests` is held against `openapi.yaml`: its status, its headers, its kind, and what
JSON has in it. What is streamed is left to whoever reads it."""

import json
import re
from functools import cache
from urllib.parse import urlsplit

import jsonschema_rs
import requests
import yaml
from server import ROOT

DOCUMENT = yaml.safe_load((ROOT / "openapi.yaml").read_text())
# Those without parameters first: `/v2/models/stats` is no model. Longer ones before others: no model is called `digits:predict`.
PATHS = sorted(DOCUMENT["paths"], key=lambda path: (path.count("{"), -len(path)))
PATTERNS = [(re.compile(re.sub(r"{\w+}", "[^/]+", path)), path) for path in PATHS]
# HTTP's own, which every reply has.
HEADERS = {"connection", "content-length", "content-type", "date", "transfer-encoding"}
# What the page and the documents forbid browsers: of no use to who calls an API.
FORBIDDING = {
    "content-security-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "referrer-policy",
    "x-content-type-options",
}
PAGES = re.compile("/|/docs.*|/page/.*")


def resolved(value):
    """What a reference leads to."""
    while "$ref" in value:
        names = value["$ref"].removeprefix("#/").split("/")
        value = DOCUMENT
        for name in names:
            value = value[name]
    return value


@cache
def described(method, path, status, kind):
    """The headers of such a reply, and what its JSON is validated with: members that it does not know are mistakes, too."""
    responses = DOCUMENT["paths"][path][method]["responses"]
    assert status in responses, f"openapi.yaml has no {status} of {method} {path}"
    response = resolved(responses[status])
    kinds = response.get("content", {"": {}})
    assert kind in kinds, f"openapi.yaml has no {kind!r} with {status} of {method} {path}"
    schema = kinds[kind].get("schema", {})
    validator = jsonschema_rs.validator_for(
        {**schema, "unevaluatedProperties": False, "components": DOCUMENT["components"]}
    )
    return {name.lower() for name in response.get("headers", {})}, validator


def check(response):
    """Fails where a reply of one of the document's operations is not as it is described."""
    method, url = response.request.method.lower(), urlsplit(response.request.url)
    path = next((path for pattern, path in PATTERNS if pattern.fullmatch(url.path)), None)
    if path is None or method not in DOCUMENT["paths"][path]:
        return
    status, kind = str(response.status_code), response.headers.get("Content-Type", "").partition(";")[0]
    headers, validator = described(method, path, status, kind)
    if PAGES.fullmatch(path):
        headers = headers | FORBIDDING | {"cache-control"}
    surplus = {name.lower() for name in response.headers} - headers - HEADERS
    assert not surplus, f"openapi.yaml has no header {surplus} with {status} of {method} {path}"
    body = response.content
    if kind == "application/octet-stream" and "Inference-Header-Content-Length" in response.headers:
        body = body[: int(response.headers["Inference-Header-Content-Length"])]
        _, validator = described(method, path, status, "application/json")
    elif kind not in ("application/json", "application/problem+json"):
        return
    try:
        validator.validate(json.loads(body))
    except jsonschema_rs.ValidationError as error:
        raise AssertionError(f"not as in openapi.yaml: {status} of {method} {path}: {error}") from None


def watch(is_ours):
    """From now on. `is_ours` says of an address, `host:port`, whether it is that of a server under test."""
    send = requests.Session.send

    def checked(session, request, **options):
        response = send(session, request, **options)
        if is_ours(urlsplit(response.request.url).netloc) and not options.get("stream"):
            check(response)
        return response

    requests.Session.send = checked
