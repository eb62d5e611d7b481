"""The admin in other languages: complete catalogues, and pages that say which language they are in."""

from __future__ import annotations

import gettext
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.utils import translation

import delayedq
from delayedq.admin.moments import script_words
from delayedq.operations.counting import Count
from tests.admin.given import HISTORY, MESSAGES, dead, offer, text_of
from tests.missing import missing

PACKAGE = Path(delayedq.__file__).parent
LANGUAGES = ["de", "he"]


def catalogue(path):
    with path.open("rb") as file:
        return {key: text for key, text in gettext.GNUTranslations(file)._catalog.items() if key}


def compiled(po, folder):
    if not shutil.which("msgfmt"):
        missing("gettext")
    mo = folder / "compiled.mo"
    subprocess.run(["msgfmt", "--check-format", "-o", mo, po], check=True, capture_output=True)
    return catalogue(mo)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_ships_is_what_was_translated(language, tmp_path):
    folder = PACKAGE / "locale" / language / "LC_MESSAGES"
    assert catalogue(folder / "django.mo") == compiled(folder / "django.po", tmp_path)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated_and_none_is_left_over(language, tmp_path):
    if not shutil.which("xgettext"):
        missing("gettext")
    copy = tmp_path / "delayedq"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.mo", "uplot"))
    make = [sys.executable, "-P", "-m", "django", "makemessages", "-l", language, "--no-obsolete", "--no-location"]
    subprocess.run(make, cwd=copy, check=True, capture_output=True)
    po = (copy / "locale" / language / "LC_MESSAGES" / "django.po").read_text()

    assert "#, fuzzy" not in po
    untranslated = subprocess.run(
        ["msgattrib", "--untranslated", "--no-obsolete"], input=po, text=True, check=True, capture_output=True
    )
    assert untranslated.stdout == ""
    assert compiled(copy / "locale" / language / "LC_MESSAGES" / "django.po", tmp_path) == catalogue(
        PACKAGE / "locale" / language / "LC_MESSAGES" / "django.mo"
    )


def page_in(client, language, url=MESSAGES):
    return client.get(url, headers={"Accept-Language": language})


def test_a_page_is_in_the_language_of_its_reader(operator, store):
    offer(store, "a", seconds=-7_250)
    text = text_of(page := page_in(operator, "de"))
    assert 'lang="de"' in page.content.decode()
    for part in ("Nachrichten", "Fällig 1", "vor 2 h", "1 Nachricht", "Schlüssel oder Nummer", "Priorität 0"):
        assert part in text


def test_a_language_that_is_read_from_right_to_left_is_laid_out_so(operator, store):
    dead(store, "a")
    page = page_in(operator, "he", HISTORY)
    assert 'lang="he" dir="rtl"' in page.content.decode()
    assert "היסטוריה" in text_of(page)


def test_texts_that_have_no_translation_say_that_they_are_english(operator, alias):
    page = page_in(operator, "fr")
    assert '<html lang="fr"' in page.content.decode()
    assert '<div class="dq" lang="en" dir="ltr">' in page.content.decode()
    assert '<div class="dq">' in page_in(operator, "de").content.decode()


def test_the_words_of_scripts_are_translated_too(operator, alias):
    with translation.override("de"):
        assert script_words()["ahead"] == "in %s"
        assert script_words()["pause"] == "Anhalten"
    assert '"pause": "Anhalten"' in page_in(operator, "de").content.decode()


def test_numbers_and_plurals_follow_the_language():
    with translation.override("de"):
        assert Count(2_400, exact=True).of_messages == "2.400 Nachrichten"
        assert Count(2_400_000, exact=False).of_messages == "etwa 2,4 M Nachrichten"
    with translation.override("en"):
        assert Count(1, exact=None).of_messages == "at least 1 message"
        assert Count(1, exact=True).of_messages == "1 message"


def test_why_a_message_waits_is_said_in_the_language_of_the_reader(operator, store):
    id_ = offer(store, "a", seconds=3_600, kind="tests.app.tasks.remind")
    text = text_of(page_in(operator, "de", f"{MESSAGES}{id_}/change/"))
    assert "Warum läuft sie nicht? Sie ist in" in text
    assert "Kein lebender Worker bedient ihre Warteschlange, mail." in text
