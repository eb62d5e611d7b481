"""The settings of a process that a test starts: those of the tests, on the database in DATABASE_URL alone."""

import environ

from tests.settings import *  # noqa: F403
from tests.settings import SQLITE_OPTIONS

DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = SQLITE_OPTIONS
DATABASE_ROUTERS = []
