from __future__ import annotations

from django.apps import AppConfig


class PipelineConfig(AppConfig):
    name = "delayedq.pipeline"
    verbose_name = "Delayed queue: pipeline"

    def ready(self) -> None:
        from delayedq.pipeline import checks  # noqa: F401  they register what they define
