"""What the explanation and the guides to results, flows and steps show is true, from first to last."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

import delayedq
from delayedq.tasks import registered
from delayedq.testing import clock, run_due

DOCS = Path(delayedq.__file__).parent.parent / "docs"
RUN_DUE = partial(run_due, raise_failures=False)


def run(page, **names):
    examples = re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)
    assert examples
    module = f"tests.guide_to_{page}"
    try:
        exec("\n".join(examples), {"run_due": RUN_DUE, "__name__": module, **names})
    finally:
        for path in [path for path in registered if path.startswith(f"{module}.")]:
            del registered[path]


@pytest.mark.parametrize("page", ["results", "steps", "explanation"])
def test_the_examples_run_from_top_to_bottom_on_a_clock_of_their_own(alias, page):
    with clock() as frozen:
        run(page, FROZEN=frozen)


def test_the_examples_of_flows_run_from_top_to_bottom(alias):
    run("flows")
