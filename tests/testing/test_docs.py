"""What docs/testing.md shows is true, from its first example to its last, in the transaction of a test."""

from __future__ import annotations

import re
from pathlib import Path

from django.db import transaction

import delayedq

PAGE = Path(delayedq.__file__).parent.parent / "docs" / "testing.md"


def test_the_examples_run_from_top_to_bottom(alias):
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert examples
    with transaction.atomic(using=alias):
        exec("\n".join(examples), {})
        transaction.set_rollback(True, using=alias)
