"""The settings of the tests: SQLite is "default", and `alias` chooses between it, "postgresql" and "mariadb"."""

from importlib.util import find_spec

from delayedq.compat import TASKS_LOGGER

SECRET_KEY = "for tests only"
#: Not UTC, so that a time which loses its zone on the way shows.
TIME_ZONE = "America/New_York"
USE_TZ = True

#: What Django 6 has by default.
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 30,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}
DATABASES = {
    # A test database in a file (conftest names it): threads and subprocesses share it.
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "unused.sqlite3", "OPTIONS": SQLITE_OPTIONS},
}
#: Databases of their own from when conftest has started their server: Django's checks ask every MySQL for its version.
SERVED = {
    "postgresql": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "delayedq",
        "USER": "postgres",
        "TEST": {"DEPENDENCIES": []},
    },
    # The server's default is a character set that can't hold most texts, and a collation that takes different ones for
    # the same.
    "mariadb": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "delayedq",
        "USER": "root",
        "TEST": {"DEPENDENCIES": []},
    },
}
DATABASE_ROUTERS = ["tests.router.ChosenDatabase"]

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
    "tests.app",
    "tests.shop",
]
if find_spec("example_project.flights") and find_spec("example_project.flights.models"):
    INSTALLED_APPS.append("example_project.flights")
if find_spec("example_project.urls"):
    ROOT_URLCONF = "example_project.urls"

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
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
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Django logs two lines per task: as quiet as a site that runs millions of them.
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {TASKS_LOGGER: {"level": "ERROR"}}}

TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "QUEUES": []}}
