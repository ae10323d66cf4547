#!/usr/bin/env python3
"""Writes the digests of the base images into the Dockerfile: from then on a build takes these bytes, whatever a tag is moved to.

    python3 tools/pin_images.py [DOCKERFILE]

Asks the registry what the tags stand for now, by `docker buildx imagetools inspect`, so it needs Docker and a network. Run it
again for newer bytes of the same versions, and commit what it changed.
"""

import re
import subprocess
import sys
from pathlib import Path

# ARG DEBIAN=debian:12.12-slim, with or without a digest.
BASE = re.compile(r"^(ARG [A-Z]+=)([\w./-]+:[\w.-]+)(@sha256:[0-9a-f]{64})?$", re.MULTILINE)


def fail(why):
    """Ends the script with one line; the Dockerfile stays as it is."""
    sys.exit(f"pin_images: {why}")


def digest(image):
    """What a tag stands for: the digest of its list of images for all machines."""
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", image]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        fail("docker is missing")
    found = done.stdout.strip()
    if done.returncode != 0 or not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        fail(f"{' '.join(command)} gave no digest: {(done.stderr.strip() or found)[-300:]}")
    return found


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "Dockerfile"
    text = path.read_text()
    images = [image for _, image, _ in BASE.findall(text)]
    if not images:
        fail(f"{path} has no line of the form ARG NAME=image:version")
    digests = {image: digest(image) for image in images}
    path.write_text(BASE.sub(lambda found: f"{found[1]}{found[2]}@{digests[found[2]]}", text))
    for image, found in digests.items():
        print(f"pin_images: {image} is {found}")


if __name__ == "__main__":
    main()
