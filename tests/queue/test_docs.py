"""What docs/queue.md shows is true, from its first example to its last."""

from __future__ import annotations

import re
from pathlib import Path

import delayedq

PAGE = Path(delayedq.__file__).parent.parent / "docs" / "queue.md"


def test_the_examples_run_from_top_to_bottom(alias):
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert examples
    exec("\n".join(examples), {})
