"""The settings of a process that a test starts: those of the tests, on the database in DATABASE_URL alone."""

import json
import os
from datetime import timedelta

import environ

from tests.settings import *  # noqa: F403
from tests.settings import SQLITE_OPTIONS

DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = SQLITE_OPTIONS
if "POOLER" in os.environ:  # the directory of the socket of a PgBouncer
    DATABASES["default"] |= {"HOST": os.environ["POOLER"], "PORT": "6432"}
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = "CURSORS" not in os.environ
if "PROXY" in os.environ:  # host and port of a proxy, or its socket
    if "unix_socket" in DATABASES["default"]["OPTIONS"]:
        DATABASES["default"]["OPTIONS"]["unix_socket"] = os.environ["PROXY"]
    else:
        DATABASES["default"]["OPTIONS"].pop("host")
        DATABASES["default"]["HOST"], DATABASES["default"]["PORT"] = os.environ["PROXY"].split(":")
if pool := json.loads(os.environ.get("POOL", "null")):
    DATABASES["default"]["OPTIONS"]["pool"] = pool
if "ISOLATION" in os.environ:  # also that of statements without a transaction
    level = os.environ["ISOLATION"]
    DATABASES["default"]["OPTIONS"] |= {
        "isolation_level": {"repeatable read": 3, "serializable": 4}[level],  # as psycopg numbers them
        "options": f"-c default_transaction_isolation={level.replace(' ', r'\ ')}",
    }
if "SECOND_DATABASE_URL" in os.environ:  # that of a second backend
    DATABASES["second"] = environ.Env().db_url("SECOND_DATABASE_URL")
    TASKS |= {"second": {**TASKS["default"], "OPTIONS": {"DATABASE": "second"}}}  # noqa: F405
DATABASE_ROUTERS = []
DELAYEDQ = {
    "POLL_INTERVAL": timedelta(seconds=float(os.environ.get("POLL_INTERVAL", "2"))),
    "HUNG_AFTER": timedelta(seconds=float(os.environ.get("HUNG_AFTER", "60"))),
    "DEPLOY_GRACE": timedelta(seconds=float(os.environ.get("DEPLOY_GRACE", "600"))),
    "ANSWER_WITHIN": timedelta(seconds=float(os.environ["ANSWER_WITHIN"])) if "ANSWER_WITHIN" in os.environ else None,
    "LISTENER_DSN": os.environ.get("LISTENER_DSN"),
    "CRON": json.loads(os.environ.get("CRON", "{}")),
    "LIMITS": json.loads(os.environ.get("LIMITS", "{}")),
    "LAKE_STAGING": os.environ.get("LAKE_STAGING"),
}
LOGGING["loggers"]["delayedq"] = {"level": "INFO", "handlers": ["console"]}  # noqa: F405
LOGGING["handlers"] = {"console": {"class": "logging.StreamHandler"}}  # noqa: F405
