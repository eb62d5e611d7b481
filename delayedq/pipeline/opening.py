"""Open what commands of the pipeline work with: a Spark session, the store, and how executors reach its database."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delayedq.conf import get_settings
from delayedq.exceptions import InvalidOption
from delayedq.pipeline.address import address_of
from delayedq.pipeline.lake.table import LakeTable
from delayedq.pipeline.spark.connecting import Address
from delayedq.pipeline.spark.lake import Lake
from delayedq.pipeline.spark.session import spark_session
from delayedq.pipeline.temporary import temporary_directory
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from delayedq.store.base import Store

    #: The arguments of `run_pipeline`, parsed.
    Options = dict[str, Any]


_NO_LAKE = "There is no lake: set DELAYEDQ['LAKE'], or pass --lake."


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What all steps use. `tell` writes a line for the operator.

    address: the database, as executors reach it. here: the same one, as this process does. staging: as Lake has it.
    """

    spark: SparkSession
    store: Store
    address: Address
    here: Address
    tell: Callable[[str], object]
    lake_path: str | None = None
    staging: str | None = None

    @property
    def lake(self) -> Lake:
        """Raises InvalidOption if there is none."""
        if self.lake_path is None:
            raise InvalidOption(_NO_LAKE)
        return Lake(self.spark, self.lake_path, self.staging)


@dataclass(frozen=True, slots=True)
class WithoutSpark:
    """What steps use that need no Spark. `tell` writes a line for the operator."""

    store: Store
    tell: Callable[[str], object]
    table: LakeTable


def opened_without_spark(options: Options, tell: Callable[[str], object]) -> WithoutSpark:
    """As the arguments and the settings say. Raises InvalidOption if there is no lake."""
    path = options["lake"] or get_settings().LAKE
    if path is None:
        raise InvalidOption(_NO_LAKE)
    return WithoutSpark(default_store(), tell, LakeTable(path))


@contextmanager
def opened(options: Options, tell: Callable[[str], object]) -> Iterator[Pipeline]:
    """The pipeline as the arguments and the settings say; Spark stops at the end of the block if it was started here.

    Raises InvalidOption, JavaMissing.
    """
    settings, store = get_settings(), default_store()
    remote = options["remote"] or (None if options["master"] else settings.SPARK_REMOTE)
    master = None if remote else options["master"] or settings.SPARK_MASTER
    where = options["address"] or settings.SPARK_ADDRESS
    progress = {"spark.ui.showConsoleProgress": "true"} if sys.stderr.isatty() and not remote else {}
    with address_of(store.alias) as here, _staging() as staging, spark_session(master, remote, progress) as spark:
        address = Address(where) if where else here
        yield Pipeline(spark, store, address, here, tell, options["lake"] or settings.LAKE, staging)


@contextmanager
def _staging() -> Iterator[str | None]:
    """A directory without files of a lake, gone after the block; None if the settings name no place for it."""
    if (place := get_settings().LAKE_STAGING) is None:
        yield None
        return
    with temporary_directory("delayedq-lake-", place) as directory:
        yield str(directory)
