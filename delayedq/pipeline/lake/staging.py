"""Files on their way between Spark and an object store that only this process reaches.

Spark writes into a directory that it shares with this process, which then copies the files into the lake; what Spark
reads is copied out of the lake first. So Spark needs no driver of the object store.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow.fs import FileSelector, FileType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayedq.pipeline.lake.table import LakeTable

#: Bytes that are copied at once.
_PIECE = 2**20


class Staging:
    """The files of a lake, at the same paths below `directory`, which is empty at first."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def take(self, table: LakeTable, *paths: str) -> None:
        """Copy files, or all files of directories, out of the lake, unless they are here already."""
        store = table.files()
        for path in self._files(table, paths):
            here = self._directory / path
            if here.exists():
                continue
            here.parent.mkdir(parents=True, exist_ok=True)
            unfinished = here.with_name(f".{here.name}")
            with store.open_input_stream(path) as source, unfinished.open("wb") as target:
                shutil.copyfileobj(source, target, _PIECE)
            unfinished.rename(here)

    def bring(self, table: LakeTable, path: str) -> None:
        """Move the files of this directory into the lake: whoever reads them gets them from there."""
        for here in sorted((self._directory / path).rglob("[!.]*.parquet")):
            with here.open("rb") as source:
                table.put(str(here.relative_to(self._directory)), source)
        shutil.rmtree(self._directory / path)

    def _files(self, table: LakeTable, paths: tuple[str, ...]) -> Iterator[str]:
        for path in paths:
            if path.endswith(".parquet"):
                yield path
            else:
                found = table.files().get_file_info(FileSelector(path, recursive=True))
                yield from (info.path for info in found if info.type == FileType.File)
