"""A sink whose tasks die once each, or whose commit does. Executors import it: a module of its own."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from pyspark import TaskContext

from delayedq.pipeline.spark.streaming import DelayedQDataSource
from delayedq.pipeline.spark.writing import MessageWriter, load_options


class DyingWriter(MessageWriter):
    def __init__(self, options, schema, dies, remember):
        super().__init__(options, schema)
        self.dies = dies
        self.remember = Path(remember)

    def write(self, iterator):
        partition = TaskContext.get().partitionId()
        if self.dies in {"never", "commit"} or (self.remember / f"died-{partition}").exists():
            return super().write(iterator)
        if self.dies == "after":
            super().write(iterator)
        if self.dies == "between":
            iterator = chain([next(iterator)], self._death(partition))
            super().write(iterator)
        return next(self._death(partition))

    def _death(self, partition):
        (self.remember / f"died-{partition}").touch()
        raise RuntimeError("A task died.")
        yield

    def commit(self, messages):
        if self.dies == "commit":
            raise RuntimeError("The driver died in commit.")
        super().commit(messages)


class DyingDataSource(DelayedQDataSource):
    @classmethod
    def name(cls):
        return "dying"

    def writer(self, schema, overwrite):
        options = {name: value for name, value in self.options.items() if name not in {"dies", "remember"}}
        writer = DyingWriter(load_options(options), schema, self.options["dies"], self.options["remember"])
        writer.plan()
        return writer
