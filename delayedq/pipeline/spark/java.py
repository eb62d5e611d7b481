"""Is there a Java that is new enough? Known without PySpark, so that a system check can tell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from delayedq.exceptions import JavaMissing

PACKAGE = "openjdk-17-jre-headless"
#: Of Spark 4.
OLDEST = 17
#: As Java tells its version, and the file `release` beside it: 1.8.0_392 is Java 8.
_VERSION = re.compile(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)')
#: Seconds that Java has to tell it.
_TOLD = 30.0

_NEEDS = f"Spark needs Java {OLDEST} or newer"
_CURE = (
    f"On Debian: apt install {PACKAGE}; elsewhere install a JRE and put it on PATH or set JAVA_HOME. Or pass --remote"
    " to use a Spark Connect server."
)


def require_java() -> None:
    """Raise JavaMissing, which says what to install, if Spark would not find Java here, or one that is too old."""
    java = _found()
    version = _version(java)
    if version is not None and version < OLDEST:
        raise JavaMissing(f"{_NEEDS}, and {java} is Java {version}. {_CURE}")


def _found() -> Path:
    """The one that Spark takes."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if not java.exists():
            raise JavaMissing(f"{_NEEDS}, and JAVA_HOME ({home}) holds no bin/java.")
        return java
    if (found := shutil.which("java")) is None:
        raise JavaMissing(f"{_NEEDS}, and finds none. {_CURE}")
    return Path(found)


def _version(java: Path) -> int | None:
    """The number of its release, None if it tells none; it is asked itself only if it has no such file."""
    release = java.resolve().parent.parent / "release"
    told = release.read_text(errors="replace") if release.is_file() else _asked(java)
    found = _VERSION.search(told)
    return int(found[1]) if found else None


def _asked(java: Path) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - the Java that Spark is about to run
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_TOLD, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(f"{_NEEDS}, and {java} does not run: {error}. {_CURE}") from None
    if answer.returncode:
        said = (answer.stderr or answer.stdout).strip().partition("\n")[0].rstrip(".")
        raise JavaMissing(f"{_NEEDS}, and {java} does not run: {said or f'exit code {answer.returncode}'}. {_CURE}")
    return answer.stderr + answer.stdout
