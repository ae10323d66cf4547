#!/usr/bin/env python3
"""Brings the viewer of `/docs` up to date, or checks that it is what its makers published.

    python3 tools/fetch_swagger_ui.py [check]

The version and what npm says of its archive stand below: change both together. The files are committed, packed with
gzip and otherwise as they are, so that neither a build nor a user needs this script.
"""

import base64
import gzip
import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "5.35.0"
URL = f"https://registry.npmjs.org/swagger-ui-dist/-/swagger-ui-dist-{VERSION}.tgz"
# `npm view swagger-ui-dist@VERSION dist.integrity`
INTEGRITY = "sha512-U06rpMtW9V3XPGOBeamTUSr0Z09jMX4IJuANpE/EZbAhw0G8CgwrzU4YmXkn/h0wCDNsXdGarTNNHC3sU8yVUQ=="
FOLDER = Path(__file__).resolve().parent.parent / "src" / "http" / "handlers" / "page" / "vendor"
PACKED = ("swagger-ui.css", "swagger-ui-bundle.js")
PLAIN = ("LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt")
ARCHIVE_BYTES_MAX = 32 << 20


def fetch():
    """The archive, if it is the one that is meant."""
    with urllib.request.urlopen(URL, timeout=120) as reply:
        archive = reply.read(ARCHIVE_BYTES_MAX)
    got = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if got != INTEGRITY:
        sys.exit(f"fetch_swagger_ui: {URL} is {got}, expected {INTEGRITY}")
    return archive


def main():
    if sys.argv[1:] not in ([], ["check"]):
        sys.exit("usage: fetch_swagger_ui.py [check]")
    with tarfile.open(fileobj=io.BytesIO(fetch())) as archive:
        published = {name: archive.extractfile(f"package/{name}").read() for name in (*PACKED, *PLAIN)}
    for name, content in published.items():
        path = FOLDER / (f"{name}.gz" if name in PACKED else name)
        if not sys.argv[1:]:
            # Without a time, so that the same files give the same bytes.
            path.write_bytes(gzip.compress(content, 9, mtime=0) if name in PACKED else content)
            print(f"fetch_swagger_ui: {path.name}: {path.stat().st_size} bytes")
            continue
        committed = path.read_bytes()
        if (gzip.decompress(committed) if name in PACKED else committed) != content:
            sys.exit(f"fetch_swagger_ui: {path} is not what was published")
    print(f"fetch_swagger_ui: swagger-ui-dist {VERSION}")


if __name__ == "__main__":
    main()
