"""What an expression may say, what it may not, and what H and R draw."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from delayedq.cron.expressions import Cron, ticks
from delayedq.exceptions import InvalidSchedule

ZONE = ZoneInfo("UTC")
START, DAY = datetime(2013, 1, 1, tzinfo=UTC), timedelta(days=1)


def times(expression, seed="", days=1):
    """The ticks of the first days of 2013, with the first instant."""
    return [
        *ticks(
            Cron(expression, ZONE, seed), START - timedelta(microseconds=1), START + days * DAY - timedelta(seconds=1)
        )
    ]


# Ranges


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("30-30 * * * *", "30 * * * *"),
        ("0 9-9 * * *", "0 9 * * *"),
        ("0 09-9/5,12 * * *", "0 9,12 * * *"),
        ("0 0 5-5 * *", "0 0 5 * *"),
        ("0 0 1 feb-2 *", "0 0 1 2 *"),
        ("0 0 * * fri-5", "0 0 * * fri"),
        ("0 0 * * * 7-7", "0 0 * * * 7"),
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("0 21-6/7 * * *", "0 21,4 * * *"),
        ("50-10/7,12 * * * *", "50,57,4,12 * * * *"),
        ("0 0 28-5/2 * *", "0 0 28,30,1,3,5 * *"),
        ("0 0 1 nov-feb/2 *", "0 0 1 11,1 *"),
        ("0 0 * * fri-tue/2", "0 0 * * 5,0,2"),
    ],
)
def test_a_range_of_one_value_is_that_value_and_steps_go_on_where_one_wraps(expression, same):
    """In croniter, 9-9 is every hour, and 21-6/7 is 21 and 5."""
    assert times(expression, days=90) == times(same, days=90)


# What is refused


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        (None, "A cron expression is a text, not None."),
        (5, "A cron expression is a text, not 5."),
        (b"0 0 * * *", r"A cron expression is a text, not b'0 0 \* \* \*'."),
        ("", "The cron expression is blank; an example is '0 9"),
        (" \t\n", "The cron expression is blank; an example is '0 9"),
        ("* * *", "'[* ]+' has 3 fields; a cron expression has five .minute, hour, .*, or a sixth, the second"),
        ("0 0 1 1 * 0 2013", "has 7 fields; .* Years can't be given"),
        ("@reboot", "'@reboot' is unknown; known are @annually, .*, @hourly"),
        ("@daily 0", "has 2 fields"),
        ("60 * * * *", "its minute can't be '60', but 0 to 59"),
        ("-1 * * * *", "its minute can't be '-1'"),
        ("L * * * *", "its minute can't be 'l'"),
        ("*/0 * * * *", r"its minute can't be '\*/0'"),
        ("* 24 * * *", "its hour can't be '24', but 0 to 23"),
        ("* 9-25 * * *", "its hour can't be '9-25'"),
        ("* ? * * *", r"its hour can't be '\?'"),
        ("* * 0 * *", "its day of the month can't be '0', but 1 to 31, L for the last"),
        ("* * 32 * *", "its day of the month can't be '32'"),
        ("* * 1,15W * *", "its day of the month can't be '1,15w'"),
        ("* * * 13 *", "its month can't be '13', but 1 to 12, or jan to dec"),
        ("* * * january *", "its month can't be 'january'"),
        ("* * * * 8", "its day of the week can't be '8', but 0 to 7, or sun to sat"),
        ("* * * * mon#6", "its day of the week can't be 'mon#6'"),
        ("* * * * mon#1,tue", "its day of the week can't be 'mon#1,tue'"),
        ("* * * * * 60", "its second can't be '60', but 0 to 59"),
        ("* * * * x", "its day of the week can't be 'x'"),
        ("0\N{NO-BREAK SPACE}0 * * *", "has 4 fields"),
        ("* * * * \N{ARABIC-INDIC DIGIT THREE}", "its day of the week can't be"),
        ("* * * * \ud800", "its day of the week can't be"),
        (f"{'9' * 5000} * * * *", "its minute can't be"),
        ("H(5-99) * * * *", "its minute can't be 'h.5-99.', but 0 to 59"),
        ("H(9-5) * * * *", "its minute can't be 'h.9-5.'"),
        ("H/0 * * * *", "its minute can't be 'h/0'"),
        ("1-1-1 * * * *", "its minute can't be '1-1-1'"),
        ("hourly * * * *", "its minute can't be 'hourly'"),
        ("H,30 * * * *", "its minute can't be 'h,30'"),
    ],
)
def test_what_is_wrong_is_named(expression, complaint):
    with pytest.raises(InvalidSchedule, match=complaint):
        Cron(expression, ZONE, "a name")


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 31 2,4,6,9,11 *", "* * 30 2 * *"])
def test_an_expression_that_never_comes_is_refused(expression):
    with pytest.raises(InvalidSchedule, match=r"never comes: no date is '(30|31) "):
        Cron(expression, ZONE)


@pytest.mark.parametrize(
    ("expression", "year"),
    [("0 0 29 2 *", 2016), ("0 0 * 2 mon#5", 2016), ("0 0 30 2 mon", 2013), ("0 0 30 2 mon#1", 2013)],
)
def test_one_that_comes_seldom_is_not(expression, year):
    assert Cron(expression, ZONE).next_after(START).year == year


@pytest.mark.parametrize("seed", [None, 5, b"name"])
def test_a_seed_is_a_text(seed):
    with pytest.raises(InvalidSchedule, match="The seed of a schedule is a text, not"):
        Cron("0 0 * * *", ZONE, seed)


@pytest.mark.parametrize(
    ("expression", "step", "size"),
    [
        ("*/90 * * * *", 90, 60),
        ("*/61 * * * *", 61, 60),
        ("0 */25 * * *", 25, 24),
        ("0 0 */32 * *", 32, 31),
        ("0 0 1 */13 *", 13, 12),
        ("0 0 * * */8", 8, 7),
        ("* * * * * */61", 61, 60),
        ("0-20/61 * * * *", 61, 60),
        ("5,50/90 * * * *", 90, 60),
        ("H/90 * * * *", 90, 60),
    ],
)
def test_a_step_that_is_larger_than_its_range_is_refused(expression, step, size):
    with pytest.raises(InvalidSchedule, match=f"a step of {step} is larger than its range, which has {size} values"):
        Cron(expression, ZONE, "a name")


@pytest.mark.parametrize("expression", ["*/60 * * * *", "0 */24 * * *", "0-20/30 * * * *", "0 0 1 jan-mar/2 *"])
def test_a_step_as_large_as_its_range_is_not(expression):
    assert times(expression, days=366)


# What is accepted


@pytest.mark.parametrize(
    ("both", "month_day", "week_day"),
    [
        ("13 * fri", "13 * *", "* * fri"),
        ("13 * l5", "13 * *", "* * l5"),
        ("15w * sat", "15w * *", "* * sat"),
        ("15w * mon#1", "15w * *", "* * mon#1"),
        ("1-7 2,5 sun#1", "1-7 2,5 *", "* 2,5 sun#1"),
        ("l * l7", "l * *", "* * l7"),
        ("*/10 * fri#2", "*/10 * *", "* * fri#2"),
        ("13 * 0-6", "13 * *", "* * 0-6"),
        ("4w * 3-6,fri,0-6", "4w * *", "* * 0-6"),
        ("*/1 * fri", "*/1 * *", "* * fri"),
    ],
)
def test_of_two_day_fields_either_will_do_whatever_their_form(both, month_day, week_day):
    either = {*times(f"0 0 {month_day}", days=730), *times(f"0 0 {week_day}", days=730)}
    assert times(f"0 0 {both}", days=730) == sorted(either)


def test_the_weekday_nearest_to_the_31st_is_that_of_the_last_day_in_shorter_months():
    days = [tick.strftime("%b %d") for tick in times("0 0 31w * *", days=151)]
    assert days == ["Jan 31", "Feb 28", "Mar 29", "Apr 30", "May 31"]


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * sun"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        (" @Annually ", "0 0 1 1 *"),
    ],
)
@pytest.mark.parametrize("seed", ["", "a name"])
def test_a_name_stands_for_an_expression_with_or_without_a_seed(name, meaning, seed):
    assert times(name, seed, days=366) == times(meaning, days=366) != []


def test_blanks_and_capitals_do_not_matter():
    assert times(" 0\t12  L JAN-feb\nSUN ", days=90) == times("0 12 l 1-2 0", days=90) != []


@pytest.mark.parametrize(
    "hour", ["2", "2,3", "9-17", "0-22", "1-23", "0-23/2", "0/2", "*/2,5", "H", "R", "H(0-11)/3", "22-2"]
)
def test_a_schedule_that_names_hours_is_a_wall_clock_schedule(hour):
    assert Cron(f"0 {hour} * * *", ZONE, "a name").wall_clock


@pytest.mark.parametrize("hour", ["*", "*/1", "*/5", "*/24", "H/2", "r/3", "0-23", "0-11,12-23", "1-23,0", "*,5"])
def test_a_schedule_whose_hours_go_on_is_an_elapsed_one(hour):
    assert not Cron(f"0 {hour} * * *", ZONE, "a name").wall_clock


def test_seconds_are_not_multiplied_out():
    """86,400 times a day, for each schedule, would be a lot to keep."""
    local_times = Cron("* * * * * *", ZONE)._times
    assert (len(local_times.minutes), len(local_times.seconds)) == (1440, 60)
    assert len(times("* * * * * *")) == 86_400


# H and R


def test_h_and_r_are_the_same_on_every_machine():
    """Golden: another release of croniter that draws others would run a schedule twice while workers are updated."""
    assert times("H H * * * H", "nightly-report") == [START.replace(hour=6, minute=38, second=45)]
    assert times("R R * * * R", "nightly-report") == [START.replace(hour=13, minute=38, second=56)]


@pytest.mark.parametrize("form", ["H", "R"])
def test_a_draw_stays_within_its_bounds_and_varies_with_the_seed(form):
    minutes = {times(f"{form}(20-39) 12 * * *", f"schedule {n}")[0].minute for n in range(300)}
    assert minutes == set(range(20, 40))


@pytest.mark.parametrize("form", ["H", "R"])
def test_a_drawn_step_keeps_its_distance_and_varies_where_it_starts(form):
    starts = set()
    for number in range(100):
        minutes = [tick.minute for tick in times(f"{form}/15 12 * * *", f"schedule {number}")]
        assert minutes == list(range(minutes[0], 60, 15))
        starts.add(minutes[0])
    assert starts == set(range(15))


def test_h_and_r_of_one_seed_have_nothing_to_do_with_each_other():
    pairs = [(times("H 12 * * *", f"{n}")[0].minute, times("R 12 * * *", f"{n}")[0].minute) for n in range(200)]
    assert len({(h - r) % 60 for h, r in pairs}) > 30


CHI_SQUARE_LIMIT = 1.15  #: of the statistic and its degrees of freedom: 99.9 % of fair draws lie below


@pytest.mark.parametrize("form", ["H", "R"])
def test_the_times_of_day_of_many_names_are_spread_evenly(form):
    """20,000 names over the 1,440 minutes of a day; if the fields shared one draw, 1,200 of these would be empty."""
    counts = Counter(Cron(f"{form} {form} * * *", ZONE, f"report {n}")._times.minutes[0] for n in range(20_000))
    expected = 20_000 / 1_440
    statistic = sum((counts[timedelta(minutes=minute)] - expected) ** 2 / expected for minute in range(1_440))
    assert 0.85 < statistic / 1_439 < CHI_SQUARE_LIMIT


def test_days_are_drawn_too():
    found = {str(times("0 0 H(1-28) H *", f"schedule {n}", days=365)[0].date()) for n in range(100)}
    assert len(found) > 50
    for number in range(20):
        assert len(times("0 0 * * R", f"schedule {number}", days=364)) == 52
        assert 2 <= len(times("0 0 H/10 1 *", f"schedule {number}", days=31)) <= 4


@pytest.mark.parametrize(
    ("expression", "field"), [("H 2 * * *", "minute"), ("0 R/2 * * *", "hour"), ("0 0 * * H", "day of the week")]
)
def test_nothing_is_drawn_without_a_seed(expression, field):
    with pytest.raises(InvalidSchedule, match=f"draws its {field} from a seed, and there is none"):
        Cron(expression, ZONE)


def test_any_text_is_a_seed():
    assert [len(times("H H * * *", seed)) for seed in ("\ud800", "\0", "x" * 10_000, "\N{SNOWMAN}")] == [1, 1, 1, 1]


# Values


def test_schedules_compare_by_what_they_are_made_of():
    assert Cron("H 0 * * *", ZONE, "a") == Cron("H 0 * * *", ZONE, "a") != Cron("H 0 * * *", ZONE, "b")
    assert len({Cron("0 0 * * *", ZONE), Cron("0 0 * * *", ZONE), Cron("0 0 * * *", ZoneInfo("Asia/Tokyo"))}) == 2
    assert repr(Cron("0 0 * * *", ZONE)) == "Cron(expression='0 0 * * *', zone=zoneinfo.ZoneInfo(key='UTC'), seed='')"
