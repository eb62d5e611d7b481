"""Those of a process that a test starts, with traces whose spans are exported in batches, into the file SPANS.

Nothing is exported before the process ends: the next batch is an hour away. EXPORT=hangs: the exporter gets no answer;
EXPORT=fails: it raises.
"""

import os
import time
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from tests.worker_settings import *  # noqa: F403
from tests.worker_settings import DELAYEDQ

DELAYEDQ = DELAYEDQ | {
    "METADATA_FROM": ["delayedq.tracing.made"],
    "AROUND_ATTEMPTS": ["delayedq.tracing.attempt"],
}


class ToFile(SpanExporter):
    def export(self, spans):
        if os.environ.get("EXPORT") == "hangs":
            time.sleep(3_600)
        if os.environ.get("EXPORT") == "fails":
            raise ConnectionError("no collector")
        with Path(os.environ["SPANS"]).open("a") as file:
            file.writelines(f"{span.name}\n" for span in spans)
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ToFile(), schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
