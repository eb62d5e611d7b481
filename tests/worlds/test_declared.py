"""README and docs/deploy/worlds.md claim what the worlds show, and nothing else."""

from __future__ import annotations

from tests.worlds.declared import PROJECT, ROOT, WORLDS, listing, versions


def test_the_table_of_versions_is_that_of_the_worlds():
    """`python -m tests.worlds.declared` prints both tables."""
    assert versions() in (ROOT / "README.md").read_text()
    assert listing() in (ROOT / "docs" / "deploy" / "worlds.md").read_text()


def test_each_version_that_the_package_names_has_a_world():
    named = [one.rpartition(" :: ") for one in PROJECT["classifiers"]]
    visited = [one for one in WORLDS if not one.nightly]
    pythons = {version for what, _, version in named if what == "Programming Language :: Python" and "." in version}
    djangos = {version for what, _, version in named if what == "Framework :: Django"}

    assert pythons == {one.python for one in visited}
    assert djangos == {version for version in djangos if any(version in one.django for one in visited)}
    assert PROJECT["requires-python"] == f">={min(pythons)}"
    assert f"django>={min(djangos)}" in PROJECT["dependencies"]


def test_names_are_ids_of_their_tests():
    names = [one.name for one in WORLDS]
    assert len({*names}) == len(names)
