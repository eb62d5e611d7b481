"""Errors for optional libraries that are missing, or do not fit: they name the extra that brings them."""

from __future__ import annotations

from importlib import metadata

#: The modules of the extras, and of what these need, each with its distribution.
_DISTRIBUTIONS = {
    "MySQLdb": "mysqlclient",
    "adbc_driver_manager": "adbc-driver-manager",
    "adbc_driver_postgresql": "adbc-driver-postgresql",
    "deltalake": "deltalake",
    "google": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "jinja2": "jinja2",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "opentelemetry": "opentelemetry-api",
    "pandas": "pandas",
    "prometheus_client": "prometheus-client",
    "psycopg": "psycopg",
    "py4j": "py4j",
    "pyarrow": "pyarrow",
    "pyspark": "pyspark",
    "zstandard": "zstandard",
}


def cure(extra: str) -> str:
    return f"pip install 'delayedq[{extra}]'"


def is_about_an_extra(error: ImportError) -> bool:
    """Whether it is one of these libraries that can't be imported, and not a module of the project."""
    return _module(error) in _DISTRIBUTIONS


def told(error: ImportError, extra: str) -> str:
    """One line about the library whose import raised this, such as "pyarrow is missing: pip install ..."."""
    module = _module(error)
    name = _DISTRIBUTIONS.get(module, module)
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is missing: {cure(extra)}."
    reason = str(error).partition("\n")[0].rstrip(".")
    return f"{name} {found} does not fit ({reason}): {cure(extra)}."


def _module(error: ImportError) -> str:
    return str(error.name).partition(".")[0]
