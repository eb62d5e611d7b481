"""The file to which all processes of a run append, read while they do."""

from __future__ import annotations

import pytest

from delayedq.torture import audit


@pytest.mark.parametrize("length", range(4))
def test_a_line_that_is_being_written_is_left_out(tmp_path, monkeypatch, length):
    monkeypatch.setenv(audit.FOLDER, str(tmp_path))
    monkeypatch.setattr(audit, "_opened", None)
    assert audit.read(tmp_path) == []
    audit.write("stored", 1)
    with (tmp_path / audit.FILE).open("a") as file:
        file.write('[1, 2, "stored", 2]'[:length])
    assert [(one.what, one.about) for one in audit.read(tmp_path)] == [("stored", (1,))]
