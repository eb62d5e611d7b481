"""One traveller, many countries: a new project with the built wheel does in each world what README says.

`pytest tests/worlds` visits what every CI run visits; `--worlds=all` the nightly ones too; `-k sqlite` chooses.
"""

from __future__ import annotations

import re

import pytest
from packaging.specifiers import SpecifierSet

from tests.worlds.traveller import Traveller


@pytest.mark.timeout(300)
def test_each_message_has_one_outcome_and_nothing_is_left(world, interpreter, servers, tmp_path, record_property):
    traveller = Traveller(world, tmp_path, interpreter, servers.settings(world))
    assert traveller.check() == world.warned
    if "AUTH_USER_MODEL" in world.settings:
        traveller.manage("makemigrations", "journey", confined=False)
    traveller.manage("migrate", "--run-syncdb", confined=False)
    try:
        with traveller.workers():
            traveller.manage("send")
            traveller.manage("delayedq", "doctor")
    finally:
        print(traveller.log.read_text(errors="replace"))  # noqa: T201  pytest shows it if the test has failed
    versions = traveller.judge()

    assert traveller.unexpected() == []
    assert versions["python"].startswith(f"Python {world.python}.")
    django = versions["django"].removeprefix("Django ")
    assert SpecifierSet(world.django.removeprefix("django")).contains(django, prereleases=True)
    if declared := re.search(r"\d[\d.]*", world.database):
        assert f" {declared[0]}." in versions["database"]
    record_property(world.name, versions)  # for the line at the end
