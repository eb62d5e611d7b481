"""Check what would be published: `python .ci/packages.py FOLDER` with a wheel, an sdist, and a list of their parts.

Raises SystemExit, naming what is missing or too much.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

BESIDE = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}


def check(folder: Path) -> None:
    committed = subprocess.run(["git", "ls-files", "delayedq"], capture_output=True, text=True, check=True)
    expected = set(committed.stdout.splitlines())
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with ZipFile(wheel) as opened:
        parts = set(opened.namelist())
        (about,) = (name for name in parts if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(opened.read(about).decode())
    same("the wheel", {part for part in parts if ".dist-info/" not in part}, expected)
    with tarfile.open(sdist) as opened:
        files = {name.partition("/")[2] for name in opened.getnames()}
    same("the sdist", files, expected | BESIDE)

    extras = {*metadata.get_all("Provides-Extra", [])}
    named = {one["name"] for one in json.loads((folder / "sbom.json").read_text())["components"]}
    needed = {line.split(";")[0].strip() for line in metadata.get_all("Requires-Dist", [])}
    missing = {name for name in map(bare, needed) if name not in named}
    same("the list of parts", missing, set())
    if metadata["Description-Content-Type"] != "text/markdown" or not extras:
        raise SystemExit("The package has no description in Markdown, or no extras.")


def bare(requirement: str) -> str:
    """The name of what is required.

    >>> bare("psycopg[binary]>=3.2")
    'psycopg'
    """
    return "".join(each if each.isalnum() or each in "-_" else " " for each in requirement).split()[0]


def same(what: str, found: set[str], expected: set[str]) -> None:
    if found != expected:
        raise SystemExit(f"{what}: missing {sorted(expected - found)}, too much {sorted(found - expected)}")


if __name__ == "__main__":
    check(Path(sys.argv[1]))
