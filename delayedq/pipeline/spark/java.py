"""Is there a Java? Known without PySpark, so that a system check can tell."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from delayedq.exceptions import JavaMissing

PACKAGE = "openjdk-17-jre-headless"


def require_java() -> None:
    """Raise JavaMissing, which says what to install, if Spark would not find Java here."""
    if home := os.environ.get("JAVA_HOME"):
        if not (Path(home) / "bin" / "java").exists():
            raise JavaMissing(f"Spark needs Java 17 or newer, and JAVA_HOME ({home}) holds no bin/java.")
    elif shutil.which("java") is None:
        raise JavaMissing(
            f"Spark needs Java 17 or newer, and finds none. On Debian: apt install {PACKAGE}; elsewhere install a"
            " JRE and put it on PATH or set JAVA_HOME. Or pass --remote to use a Spark Connect server."
        )
