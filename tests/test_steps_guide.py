"""What docs/steps.md shows is true, from its first example to its last."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import delayedq
from delayedq.tasks import registered
from delayedq.testing import clock, run_due

PAGE = Path(delayedq.__file__).parent.parent / "docs" / "steps.md"
NAME = "tests.guide_to_steps"


def test_the_examples_run_from_top_to_bottom(alias):
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert examples
    try:
        with clock() as frozen:
            names = {"FROZEN": frozen, "run_due": partial(run_due, raise_failures=False), "__name__": NAME}
            exec("\n".join(examples), names)
    finally:
        for path in [path for path in registered if path.startswith(f"{NAME}.")]:
            del registered[path]
