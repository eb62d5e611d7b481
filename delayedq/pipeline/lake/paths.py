"""Name a lake: in the books, and wherever it is looked for. It needs none of the libraries of the lake."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit


def absolute(path: str) -> str:
    """One name for a directory, which may be relative to where we are, or for the URL of one or of an object store."""
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    return path.rstrip("/") if "://" in path else str(Path(path).absolute())
