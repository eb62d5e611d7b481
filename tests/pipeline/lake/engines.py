"""Engines that know nothing of delayedq, and what they read of a lake: the ids, each as often as it is there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def polars(path, **storage_options):
    import polars as pl

    frame = pl.scan_delta(path, storage_options=storage_options or None).select("id").collect()
    return sorted(frame["id"].to_list())


def duckdb(path):
    return [id_ for (id_,) in asked("SELECT id FROM delta_scan(?) ORDER BY id", path)]


def asked(query, *values, show=False):
    """What DuckDB answers: rows, or the text that it shows. Its extension is a wheel: there is nothing to download."""
    import duckdb

    [root] = find_spec("duckdb_ext").submodule_search_locations
    [extension] = Path(root).rglob("delta.duckdb_extension")
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        connection.execute(f"LOAD '{extension}'")
        return str(connection.sql(query)) if show else connection.execute(query, values).fetchall()


def pandas(path, **storage_options):
    from deltalake import DeltaTable

    return sorted(DeltaTable(path, storage_options=storage_options or None).to_pandas(columns=["id"])["id"].to_list())


ENGINES = (polars, duckdb, pandas)


def read_by_all(path):
    """What all of them read; they must agree."""
    found = [engine(path) for engine in ENGINES]
    assert all(other == found[0] for other in found)
    return found[0]
