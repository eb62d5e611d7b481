"""A cron expression gives an error or ticks, and soon: none makes a worker or a page wait."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st

from delayedq.cron.expressions import FIELDS, Cron, as_zone
from delayedq.exceptions import InvalidSchedule
from tests.fuzz.effort import refused, texts, tried

#: Seconds of processor time in which the rarest expression has its next ticks, also on a busy machine.
AT_ONCE = 5.0

numbers = st.integers(0, 62).map(str) | st.sampled_from(["00", "-1", "9" * 9, "9" * 5_000, "٣", "1_0", "1e3", "0x1"])
names = st.sampled_from(
    ["jan", "dec", "mon", "sun", "L", "l5", "15w", "LW", "fri#2", "fri#5", "mon#9", "?", "*", "H", "r"]
)
ones = numbers | names | texts
fields = (
    ones
    | st.builds("{}-{}".format, ones, ones)
    | st.builds("{}/{}".format, ones, numbers)
    | st.builds("{}-{}/{}".format, ones, ones, numbers)
    | st.builds("h({}-{})/{}".format, numbers, numbers, numbers)
    | st.lists(ones, min_size=2, max_size=4).map(",".join)
)
expressions = (
    st.lists(fields, min_size=len(FIELDS) - 1, max_size=len(FIELDS)).map(" ".join)
    | st.tuples(st.sampled_from(["0 0", "* *", "59 23"]), fields, fields, fields).map(" ".join)
    | texts
)
NOW, UTC_ZONE = datetime(2026, 3, 8, tzinfo=UTC), ZoneInfo("UTC")
FIRST = datetime.min.replace(tzinfo=UTC)
moments = st.sampled_from([FIRST, NOW, datetime.max.replace(tzinfo=UTC)])
zones = st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]).map(ZoneInfo)


@tried(300)
@example("0 0 29 2 mon#5", UTC_ZONE, NOW)
@example("0 0 31 2 *", UTC_ZONE, NOW)
@example("0 0 29 2 fri", ZoneInfo("America/New_York"), FIRST)
@example("h(46-46)/46 0 6 6 0", UTC_ZONE, NOW)
@example("* " * 200_000, UTC_ZONE, NOW)
@example(",".join(["0-59"] * 20_000) + " * * * *", UTC_ZONE, NOW)
@given(expressions, zones, moments)
def test_an_expression_is_refused_or_has_its_next_ticks_at_once(expression, zone, moment):
    began = time.process_time()
    with refused(InvalidSchedule):
        ticks = list(islice(Cron(expression, zone, "seed").ticks_after(moment), 3))
        assert ticks == sorted(set(ticks))
        assert all(moment < tick for tick in ticks)
    assert time.process_time() - began < AT_ONCE


@tried(100)
@given(
    texts | st.sampled_from(["", "..", "America", "posixrules", "tzdata.zi", "a" * 5_000, "UTC/..", "Europe/./London"])
)
def test_a_time_zone_is_found_or_refused(name):
    with refused(InvalidSchedule, repr(name)):
        assert as_zone(name).key == name
