"""The pages of the admin, one module for each. Whatever they change goes through `delayedq.operations`."""

from delayedq.admin import dashboard, edits, finished, flows, messages, queues, schedules

__all__ = ["dashboard", "edits", "finished", "flows", "messages", "queues", "schedules"]
