from __future__ import annotations

from django.apps import AppConfig


class PipelineConfig(AppConfig):
    name = "delayedq.pipeline"
    label = "delayedq_pipeline"
    verbose_name = "Delayed queue: pipeline"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from delayedq.operations.archived import register_archive
        from delayedq.pipeline import checks  # noqa: F401  they register what they define
        from delayedq.pipeline.archived import find_in_lake, look, open_since, troubles
        from delayedq.pipeline.models import ArchiveBatch
        from delayedq.pipeline.scheduled import scheduled_steps
        from delayedq.store.retention import keep_history

        keep_history(ArchiveBatch.open_cutoff)
        register_archive(find_in_lake, open_since, look, troubles, scheduled_steps)
