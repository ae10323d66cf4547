#!/usr/bin/env python3
"""Writes the notices of all that is built into the binary: each library's name, licence and the texts that come with it.

    cargo tree --locked --edges normal --prefix none --format '{p}|{l}|{r}' > crates.txt
    python3 tools/notices.py crates.txt ~/.cargo/registry/src src/http/handlers/page/vendor > THIRD-PARTY.txt

Their sources must be in the registry's folder: they are once the binary was built. A text that several libraries have word by word is
written once. Libraries in C that come with a crate have theirs below it, and are found there. Other folders are of what is built in
beside crates.
"""

import argparse
import re
import sys
from pathlib import Path

NAMES = re.compile(r"(.+\.)?(licen[cs]e|copying|notice|unlicense|copyright|patents)([-_. ].*)?", re.IGNORECASE)
# Not their words to users: code, and what is about their tests and tools.
NOT_TEXTS = {".rs", ".py", ".c", ".h", ".toml", ".json", ".html", ".sh", ".cmake", ".rtf"}
ASIDE = {"test", "tests", "testdata", "doc", "docs", "doc-valgrind", "contrib", "examples", "tools", "scripts", "ci", "build"}


def fail(why):
    """Ends the script with one line."""
    sys.exit(f"notices: {why}")


def crates(listing):
    """Name, version, licence and home of each crate that is not ours, once."""
    found = set()
    for line in listing.splitlines():
        package, licence, home = line.removesuffix(" (*)").split("|")
        name, version, *rest = package.split()
        # What is built here has its path behind it.
        if not any(word.startswith("(/") for word in rest):
            found.add((name, version.removeprefix("v"), licence, home))
    return sorted(found)


def texts(folder):
    """The texts of licences in a crate's folder, by their path in it."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        words = NAMES.fullmatch(path.name) and path.suffix.lower() not in NOT_TEXTS
        if path.is_file() and words and not ASIDE & {part.lower() for part in inside.parts[:-1]}:
            yield str(inside), path.read_text(errors="replace").strip()


def notices(listing, registry, beside):
    """All of it as one text."""
    head, by_text = [], {}

    def add(name, folder):
        of_it = list(texts(folder))
        for path, text in of_it:
            by_text.setdefault(" ".join(text.split()), (text, []))[1].append(f"{name}: {path}")
        return bool(of_it)

    for name, version, licence, home in crates(listing):
        crate = f"{name} {version}"
        folders = list(registry.glob(f"*/{name}-{version}"))
        if not folders:
            fail(f"the source of {crate} is not in {registry}: build the binary first")
        if not licence:
            fail(f"{crate} does not say its licence")
        head.append(f"{crate}: {licence}{f', {home}' if home else ''}")
        if not add(crate, folders[0]):
            head[-1] += " (it brings no text of it)"
    for folder in beside:
        if not add(folder.name, folder):
            fail(f"there is no text of a licence in {folder}")
    parts = ["Libraries that are built into ocelli, with their licences.", "\n".join(head)]
    for text, places in by_text.values():
        parts += ["-" * 80, "\n".join(places), text]
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("crates", type=Path, help="what cargo tree has written")
    parser.add_argument("registry", type=Path, help="the folder with the sources of crates")
    parser.add_argument("beside", type=Path, nargs="*", help="folders of what is built in beside crates")
    given = parser.parse_args()
    print(notices(given.crates.read_text(), given.registry, given.beside))


if __name__ == "__main__":
    main()
