"""A project that has other task frameworks installed, on the database in DATABASE_URL."""

from tests.worker_settings import *  # noqa: F403
from tests.worker_settings import DATABASES as BASES
from tests.worker_settings import INSTALLED_APPS as APPS
from tests.worker_settings import TASKS as OWN

INSTALLED_APPS = [*APPS, "django_tasks_db", "django_ox", "django_q"]
if BASES["default"]["ENGINE"].endswith("postgresql"):
    INSTALLED_APPS.append("procrastinate.contrib.django")
TASKS = {
    **OWN,
    "tasks_db": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": []},
    "ox": {"BACKEND": "django_ox.backend.OxBackend", "QUEUES": []},
}
Q_CLUSTER = {"orm": "default", "name": "there"}
