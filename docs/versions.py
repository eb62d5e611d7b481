"""The site of several versions in one folder, with a list on each page to change between them.

    uv run --group docs python docs/versions.py site v0.2.0 v0.1.0

The newest comes first: the start page leads to it. Each version is built from its tag, with its own `docs/conf.py`, and
needs none of this. The folder works from any web server, and from a disk; nothing is fetched from a network.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from html import escape
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parent.parent
SCRIPT = "versions.js"
#: Shows the list, and leads to the same page of the chosen version, or to its first one where it has no such page.
SWITCHER = """\
(() => {
  const versions = %s;
  const root = new URL(".", document.currentScript.src).pathname;
  const [here, ...path] = decodeURIComponent(location.pathname.slice(root.length)).split("/");
  const page = path.join("/") || "index.html";
  const list = document.createElement("select");
  list.setAttribute("aria-label", "Version");
  for (const [name, pages] of versions) {
    const target = pages.includes(page) ? page : "index.html";
    list.add(new Option(name, root + encodeURIComponent(name) + "/" + target, false, name === here));
  }
  list.addEventListener("change", () => { location.href = list.value; });
  const brand = document.querySelector(".sidebar-brand");
  if (brand) brand.after(list); else document.body.prepend(list);
})();
"""
START = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Documentation</title>
<meta http-equiv="refresh" content="0; url={0}"></head>
<body><a href="{0}">The newest version</a></body></html>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the site goes; folders of these tags in it are replaced")
    parser.add_argument("tags", nargs="+", type=tag, help="the newest first")
    given = parser.parse_args()
    for name in given.tags:
        build(name, given.folder)
    join(given.folder, given.tags)


def tag(name: str) -> str:
    """It becomes a folder, and a word of a command."""
    if "/" in name or name.startswith((".", "-")):
        raise argparse.ArgumentTypeError(f"{name!r} can't be the name of a folder")
    return name


def build(name: str, folder: Path, repository: Path = ROOT) -> None:
    """Build the site of this tag into a folder of its name."""
    target = folder.resolve() / name
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as there:
        archive = Path(there) / "source.tar"
        subprocess.run(["git", "-C", repository, "archive", "--format=tar", f"--output={archive}", name], check=True)  # noqa: S603, S607
        with tarfile.open(archive) as source:
            source.extractall(there, filter="data")
        own = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        subprocess.run([sys.executable, "-m", "sphinx", "-q", "docs", target], cwd=there, env=own, check=True)  # noqa: S603


def join(folder: Path, names: list[str]) -> None:
    """Put the list on each page of these versions, which are there, and make the start page."""
    pages = {
        name: sorted(page.relative_to(folder / name) for page in (folder / name).rglob("*.html")) for name in names
    }
    listed = [[name, [page.as_posix() for page in own]] for name, own in pages.items()]
    (folder / SCRIPT).write_text(SWITCHER % json.dumps(listed).replace("</", "<\\/"))
    for name, own in pages.items():
        for page in own:
            _link(folder / name / page, "../" * len(page.parts) + SCRIPT)
    (folder / "index.html").write_text(START.format(escape(f"{quote(names[0])}/index.html")))
    plain = [f"- [{name}]({quote(name)}/llms.txt)" for name in names]
    (folder / "llms.txt").write_text("\n".join(["# delayedq", "", *plain]) + "\n")


def _link(page: Path, script: str) -> None:
    text = page.read_text()
    added = f'<script defer src="{script}"></script></head>'
    if added not in text:
        page.write_text(text.replace("</head>", added, 1))


if __name__ == "__main__":
    main()
