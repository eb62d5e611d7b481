"""The pages of the admin, one module for each. Whatever they change goes through `delayedq.operations`.

Django imports this where there is an admin. What templates use of it works without.
"""

from django.apps import apps

if apps.is_installed("django.contrib.admin"):
    from delayedq.admin import dashboard, edits, finished, messages, queues
    from delayedq.cron import admin as schedules
    from delayedq.flows import admin as flows

    __all__ = ["dashboard", "edits", "finished", "flows", "messages", "queues", "schedules"]
