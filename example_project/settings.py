"""Settings of the example project. Settings that differ between machines come from the environment."""

from pathlib import Path

import environ  # type: ignore[import-untyped]

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="insecure-and-good-enough-for-a-demo")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

DATABASES = {"default": env.db_url("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'flights.sqlite3'}")}
# A worker thread keeps its connection; a new one for each task would cost more than the task.
DATABASES["default"] |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        # SQLite has one writer at a time: with IMMEDIATE a transaction waits for the lock when it begins, not half-way.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "delayedq",
    "delayedq.pipeline",
    "delayedq.desk",
    "example_project.flights",
]

TASKS = {
    "default": {
        "BACKEND": "delayedq.backend.DelayedQBackend",
        "QUEUES": ["default", "reminders", "refunds"],
    },
}

# A schedule of a step of the pipeline.
STEP = {"task": "delayedq.pipeline.tasks.schedule_step", "timezone": "America/New_York"}

DELAYEDQ = {
    # Where `run_pipeline archive` moves history to.
    "LAKE": env.str("DELAYEDQ_LAKE", default=str(BASE_DIR / "lake")),
    "CRON": {
        # 02:30 does not exist in New York on one day in March (DST begins): the report then runs at 03:00.
        "report": {
            "task": "example_project.flights.tasks.report",
            "cron": "30 2 * * *",
            "timezone": "America/New_York",
        },
        "sweep": {
            "task": "example_project.flights.tasks.sweep",
            "cron": "*/15 * * * *",
        },
        # These need the spark extra and Java.
        "archive": STEP | {"kwargs": {"arguments": ["archive"]}, "cron": "15 3 * * *"},
        "compact": STEP | {"kwargs": {"arguments": ["compact"]}, "cron": "15 4 * * sun"},
        "history": STEP
        | {"kwargs": {"arguments": ["report", "--output", str(BASE_DIR / "delayedq-report")]}, "cron": "15 5 * * *"},
    },
}

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    # Each user reads the admin in the language of their browser.
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

# Who is not signed in and opens the desk does so in the admin.
LOGIN_URL = "admin:login"

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
ASGI_APPLICATION = "example_project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

USE_TZ = True
TIME_ZONE = "America/New_York"
LANGUAGE_CODE = "en-us"
STATIC_URL = "static/"
STATIC_ROOT = env.str("STATIC_ROOT", default=str(BASE_DIR / "static"))

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    # The tasks framework logs two lines at INFO per message: too many for a busy worker. (On Django 5.2 it is the
    # package django-tasks, whose logger has another name.)
    "loggers": {"django.tasks": {"level": "WARNING"}, "django_tasks": {"level": "WARNING"}},
}
