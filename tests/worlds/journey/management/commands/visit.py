"""Read the pages of the admin, as somebody who may see and do everything."""

from contextlib import suppress

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand
from django.test import Client
from django.urls import NoReverseMatch, reverse
from journey.expectations import expect


def pages():
    """Each page of each of our models: those that need no more than a name, and those of one row, for its first row."""
    for model, shown in admin.site._registry.items():
        if model._meta.app_label == "delayedq":
            row = model._default_manager.first() if model._meta.managed else None
            for pattern in shown.get_urls():
                for arguments in ([], [row.pk] if row else []):
                    with suppress(NoReverseMatch):  # it takes the other, more, or is a redirect without a name
                        yield reverse(f"admin:{pattern.name}", args=arguments)


#: What must be there.
SHOWN = {
    f"/admin/delayedq/{page}/"
    for page in (
        *("dashboard", "dashboard/forecast", "dashboard/durations", "message", "message/send", "finishedmessage"),
        *("finishedmessage/errors", "flow", "cronschedule", "pausedqueue", "operatoredit"),
    )
}


class Command(BaseCommand):
    def handle(self, **options):
        people = get_user_model().objects
        person = people.filter(username="ann").first() or people.create_superuser("ann", "ann@example.com", "password")
        site = Client(SERVER_NAME="localhost")
        site.force_login(person)
        for page in sorted({*pages()}):
            answer = site.get(page)
            # Some need a form or a question after their address, or are for nobody.
            expected = {200} if page in SHOWN else {200, 302, 400, 403, 404, 405}
            expect(answer.status_code in expected, True, of=f"{page} answered {answer.status_code}:")
            self.stdout.write(f"{answer.status_code} {page}")
