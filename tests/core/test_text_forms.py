"""Times and enum members in a payload, and what no payload may do."""

from __future__ import annotations

import enum
import json
import sys
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from types import ModuleType
from zoneinfo import ZoneInfo

import pytest

from delayedq.core.serialization import dumps, loads
from delayedq.exceptions import ArgumentsMismatch, NotStorable

NEW_YORK = ZoneInfo("America/New_York")


class Colour(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1


class Flight: ...


def tagged(tag, form):
    return json.dumps({"$": tag, "v": form})


# Times


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize(("month", "day", "hour"), [(11, 3, 1), (3, 10, 2), (7, 1, 12)])
def test_a_wall_time_that_occurs_twice_or_never_comes_back(month, day, hour, fold):
    moment = datetime(2013, month, day, hour, 30, tzinfo=NEW_YORK, fold=fold)
    back = loads(dumps(moment))
    assert (back.isoformat(), back.fold, back.tzinfo) == (moment.isoformat(), fold, NEW_YORK)


def test_the_instant_is_kept_when_the_rules_of_a_zone_changed():
    text = json.dumps({"$": "datetime", "v": "2030-01-01T12:00:00-07:00[America/New_York]"})
    assert loads(text) == datetime(2030, 1, 1, 19, tzinfo=UTC)
    assert loads(text).isoformat() == "2030-01-01T14:00:00-05:00"


class Odd(tzinfo):
    def utcoffset(self, moment):
        return timedelta(hours=5, minutes=45, seconds=7)

    dst = tzname = lambda self, moment: None


def test_another_tzinfo_becomes_the_offset_it_had():
    moment = datetime(2013, 1, 1, 9, tzinfo=Odd())
    back = loads(dumps(moment))
    assert back == moment
    assert back.tzinfo == timezone(timedelta(hours=5, minutes=45, seconds=7))


# Members


def test_members_that_no_other_process_finds_are_refused(monkeypatch):
    class Local(enum.Enum):
        HERE = 1

    with pytest.raises(NotStorable, match=r"<Local> can't be stored: .*Local does not lead to its class"):
        dumps(Local.HERE)
    monkeypatch.setattr(Colour, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Colour", Colour, raising=False)
    with pytest.raises(NotStorable, match="__main__:Colour does not lead to its class"):
        dumps(Colour.RED)


# What a row in the database must not be able to do


class Trap(ModuleType):
    """A module that is loaded when it is touched, as importlib.util.LazyLoader makes them."""

    def __getattribute__(self, name):
        pytest.fail(f"{name} was looked up")


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "os:environ",
        "os.path:join",
        "builtins:eval",
        "builtins:dict",
        "sys:modules",
        "enum:Enum",
        "enum:Flag",
        "enum",
        "enum:",
        "",
        ":",
        "trap:Colour",
        "antigravity:Colour",
        f"{__name__}:Colour.RED",
        f"{__name__}:Colour.RED.__class__",
        f"{__name__}:Colour.__class__",
        f"{__name__}:Flight",
        f"{__name__}:NEW_YORK",
        f"{__name__}:Nowhere.Colour",
    ],
)
def test_only_an_enum_of_an_imported_module_is_found(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trap", Trap("trap"))
    monkeypatch.setattr("builtins.__import__", lambda name, *_: pytest.fail(f"{name} was imported"))
    before = set(sys.modules)
    for name in ("RED", "mro", "__class__", 1):
        with pytest.raises(ArgumentsMismatch, match="no Enum in a module that is imported here"):
            loads(tagged("enum", [path, name]))
    assert set(sys.modules) == before


@pytest.mark.parametrize("name", ["GREEN", "mro", "__class__", "name", 1, 7, None, [], {}])
def test_only_a_member_is_taken_from_an_enum(name):
    with pytest.raises(ArgumentsMismatch, match="malformed enum"):
        loads(tagged("enum", [f"{__name__}:Colour", name]))


def test_a_flag_is_not_made_of_bits_it_does_not_have():
    assert loads(tagged("enum", [f"{__name__}:Access", 0])) is Access(0)
    with pytest.raises(ArgumentsMismatch, match="invalid value 8"):
        loads(tagged("enum", [f"{__name__}:Access", 8]))


class Trapped(enum.EnumType):
    """What a class of members, and the type of such a class, may do when it is asked for one."""

    def __call__(cls, *args, **kwargs):
        pytest.fail(f"{cls.__name__} was called")

    def __getitem__(cls, name):
        pytest.fail(f"{name} was looked up")


class Guarded(enum.Flag, metaclass=Trapped):
    READ = 1
    WRITE = 2

    @classmethod
    def _missing_(cls, value):
        pytest.fail(f"{value} was looked up")


class Ejecting(enum.IntFlag, boundary=enum.FlagBoundary.EJECT):
    READ = 1


def test_no_code_of_a_class_runs_while_a_member_of_it_is_read():
    path = f"{__name__}:Guarded"

    assert loads(tagged("enum", [path, "READ"])) is Guarded.READ
    assert loads(tagged("enum", [path, 2])) is Guarded.WRITE
    assert loads(tagged("enum", [path, 3]))._value_ == 3
    with pytest.raises(ArgumentsMismatch, match="invalid value 8"):
        loads(tagged("enum", [path, 8]))
    with pytest.raises(ArgumentsMismatch, match="malformed enum"):
        loads(tagged("enum", [path, "EXECUTE"]))


def test_bits_that_are_no_member_are_no_number_instead():
    with pytest.raises(ArgumentsMismatch, match="no member has these bits"):
        loads(tagged("enum", [f"{__name__}:Ejecting", 8]))


@pytest.mark.parametrize("form", [[], [f"{__name__}:Colour"], [7, "RED"], [None, None], "ab", {}, 7])
def test_a_malformed_member_is_a_mismatch(form):
    with pytest.raises(ArgumentsMismatch, match="malformed enum"):
        loads(tagged("enum", form))
