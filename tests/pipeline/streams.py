"""A stream that is run to its end."""

from __future__ import annotations

from pyspark.errors import StreamingQueryException

#: Seconds.
PATIENCE = 500
TRIES = 3


def run_to_the_end(sink, path):
    """From its checkpoint again, if Spark gave up on a Python worker, which has ten seconds to start on any machine."""
    for tries_left in reversed(range(TRIES)):
        query = sink.trigger(availableNow=True).start(str(path))
        try:
            assert query.awaitTermination(PATIENCE)
        except StreamingQueryException as error:
            if "connect back" not in str(error) or not tries_left:
                raise
        else:
            return
