"""What docs/desk.md shows is true, from its first example to its last."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import delayedq

PAGE = Path(delayedq.__file__).parent.parent / "docs" / "desk.md"


def test_the_examples_run_from_top_to_bottom(store, monkeypatch, settings):
    settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}  # of Django 6.1
    _, *examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) > 4
    module = ModuleType("desk_guide")
    monkeypatch.setitem(sys.modules, "desk_guide", module)
    exec("\n".join(examples), module.__dict__)
