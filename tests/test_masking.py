"""What sensitive tasks show and log: nothing of their secrets."""

from __future__ import annotations

import json
import logging

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.views.decorators.debug import sensitive_variables

from delayedq.compat import InvalidTask
from delayedq.core.masking import MASK, secrets_in, without
from delayedq.masking import masking_of, shown
from delayedq.models import FinishedMessage
from delayedq.results import errors_with
from delayedq.tasks.options import sensitive_names
from delayedq.worker.executor import execute
from delayedq.worker.transitions import decision, send_signals, transition
from tests.app.tasks import echo, log_in, pay
from tests.worker.attempts import attempt_of, claimed

SECRET = "tok_4c11e9"


def row_of(task, payload, **fields):
    return FinishedMessage(id=1, kind=task.module_path, payload=json.dumps(payload), **fields)


# Which arguments are sensitive


def named(*names):
    @sensitive_variables(*names)
    def function(a, b, *rest): ...

    return function


def anamed(*names):
    @sensitive_variables(*names)
    async def function(a, b): ...

    return function


@pytest.mark.parametrize("wrapped", [named, anamed])
def test_the_variables_that_django_knows_as_sensitive_are(wrapped):
    assert sensitive_names(wrapped("b", "local"), False, False) == {"b"}
    assert sensitive_names(wrapped("b"), False, ["a"]) == {"a", "b"}
    assert sensitive_names(wrapped(), False, False) is True


def test_a_function_without_any_is_not_sensitive():
    assert sensitive_names(lambda a: a, False, False) is False
    assert (echo.sensitive, pay.sensitive, log_in.sensitive) == (False, {"token"}, True)


@pytest.mark.parametrize("given", ["token", ["tokn"], [7], 7])
def test_a_wrong_name_is_refused_with_the_names_there_are(given):
    def function(token): ...

    with pytest.raises(InvalidTask, match="sensitive is True, or a list of token, return; not"):
        sensitive_names(function, False, given)


# What is shown


def test_arguments_are_masked_by_name_wherever_they_stand():
    masked = shown(row_of(pay, {"args": [7, SECRET, "n", 1]}))
    assert json.loads(masked.payload) == {"args": [7, MASK, "n", 1]}
    masked = shown(row_of(pay, {"args": [7], "kwargs": {"token": {"deep": [SECRET]}, "note": "n"}}))
    assert json.loads(masked.payload) == {"args": [7], "kwargs": {"token": MASK, "note": "n"}}


def test_a_sensitive_task_shows_no_argument_and_no_result():
    masked = shown(row_of(log_in, {"args": ["ann", "pw"]}, result='"ann is in"', metadata='{"cron":{"schedule":"s"}}'))
    assert json.loads(masked.payload) == {"args": [MASK, MASK]}
    assert json.loads(masked.result) == MASK
    assert json.loads(masked.metadata)["cron"] == {"schedule": "s"}


def test_a_name_that_the_task_does_not_take_any_more_is_masked():
    assert json.loads(shown(row_of(log_in, {"kwargs": {"passwd": SECRET}})).payload) == {"kwargs": {"passwd": MASK}}


@pytest.mark.parametrize("payload", ["[", "null", '{"args": 7}', f'"{SECRET}"', "[" * 5_000])
def test_a_payload_that_can_not_be_read_is_masked_as_a_whole(payload):
    row = FinishedMessage(id=1, kind=pay.module_path, payload=payload, errors=json.dumps([{"message": SECRET}]))
    masked = shown(row)
    assert SECRET not in masked.payload


def test_what_is_not_sensitive_is_the_same_object():
    row = row_of(echo, {"args": [SECRET]})
    assert shown(row) is row
    assert masking_of(echo.module_path) is None


def test_without_the_permission_nothing_of_any_task_is_shown():
    errors = json.dumps([{"attempt": 1, "exception": "ValueError", "message": SECRET, "traceback": f"x {SECRET}"}])
    masked = shown(row_of(echo, {"args": [SECRET]}, result=f'"{SECRET}"', errors=errors), payload=False)
    assert SECRET not in f"{masked.payload}{masked.result}{masked.errors}"
    assert json.loads(masked.errors)[0]["exception"] == "ValueError"


# Errors


def test_the_secrets_of_an_attempt_are_neither_stored_nor_logged(caplog):
    attempt = attempt_of(pay, 7, SECRET, max_attempts=1)
    ended = execute(attempt)
    stored = transition(ended, decision(ended), ended.finished).errors
    with caplog.at_level(logging.INFO, "delayedq"):
        send_signals(ended, decision(ended))

    assert MASK in stored
    assert SECRET not in stored
    (line,) = [record for record in caplog.records if record.name == "delayedq"]  # a worker filters Django's line
    said = logging.Formatter().format(line)
    assert "ValueError: 7 refused for" in said
    assert MASK in said
    assert SECRET not in said


def test_a_secret_is_masked_before_the_text_is_cut():
    error = ValueError(f"{'x' * 1_995}{SECRET}")
    record = json.loads(errors_with(claimed(pay, 7, SECRET), error, "w", 1.0))[0]
    assert "tok" not in record["message"]


def test_errors_of_other_tasks_stay_as_they_are():
    record = json.loads(errors_with(claimed(echo, SECRET), ValueError(SECRET), "w", 1.0))[0]
    assert record["message"] == SECRET


@pytest.mark.parametrize(
    ("secret", "text", "masked"),
    [
        ("it's \n a", "got 'it\\'s \\n a' and it's \n a", f"got 'it\\'s \\n a' and {MASK}"),
        ('say "hi"', r"json: say \"hi\" plain: " + 'say "hi"', f"json: {MASK} plain: {MASK}"),
        ("é1234", r"json: \u00e91234", f"json: {MASK}"),
        ("17", "17 of 1700 and 17.", f"{MASK} of 1700 and {MASK}."),
        ("abcd", "xabcdx", f"x{MASK}x"),
    ],
)
def test_secrets_are_found_as_python_and_json_write_them(secret, text, masked):
    assert without([secret])(text) == masked


def test_secrets_of_all_types_are_found():
    value = {"a": [7.5, {"$": "bytes", "v": "AP9hYmM="}, None, True, ""], "b": {"$": "uuid", "v": "2f6d"}}
    assert {*secrets_in(value)} == {"7.5", "AP9hYmM=", "\\x00\\xffabc", "2f6d"}


# What the settings decide


def redacted(kind, name, value):
    if name == "raise":
        return value.replace("card", "****")
    if name == "return":
        raise ValueError(SECRET)
    return f"{kind.rpartition('.')[2]}.{name}" if name == "args" else value


@pytest.mark.parametrize("given", [redacted, "tests.test_masking.redacted"])
def test_redact_decides_what_is_shown_and_a_failure_of_it_masks(settings, caplog, given):
    settings.DELAYEDQ = {"REDACT": given}
    errors = json.dumps([{"attempt": 1, "message": "card 1", "traceback": "card 2"}])
    masked = shown(row_of(echo, {"args": [1], "kwargs": {"b": 2}}, result='"r"', errors=errors))

    assert json.loads(masked.payload) == {"args": ["echo.args"], "kwargs": {"b": 2}}
    assert json.loads(masked.result) == MASK
    assert [json.loads(masked.errors)[0][name] for name in ("message", "traceback")] == ["**** 1", "**** 2"]
    assert "failed for 'return'" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("given", [7, "nodots", ""])
def test_redact_is_a_callable_or_a_path(settings, given):
    from delayedq.conf import get_settings

    settings.DELAYEDQ = {"REDACT": given}
    with pytest.raises(ImproperlyConfigured, match=r"REDACT.* must be a callable, its dotted path, or None"):
        get_settings()
