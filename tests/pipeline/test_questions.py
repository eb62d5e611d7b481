"""docs/pipeline-questions.md: each query of the page prints what stands below it.

After a change, `python -m tests.pipeline.test_questions` writes what they print into the page.
"""

from __future__ import annotations

import io
import re
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from delayedq.pipeline.lake.table import LakeTable
from tests.pipeline.lake.engines import asked
from tests.pipeline.shop import fill

PAGE = Path(__file__).parents[2] / "docs" / "pipeline-questions.md"
OPEN = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUESTION = re.compile(r"^```sql\n(.*?)^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PLACE = "/srv/lake"


def opened(spark, path):
    """Run the lines that open the lake, in this session."""
    (lines,) = OPEN.findall(PAGE.read_text())
    exec(lines.replace(PLACE, path).replace("spark = start()", ""), {"spark": spark})


def answer(spark, path, question):
    """What the reader's session prints."""
    if "delta_scan" in question:
        return f"{asked(question.replace(PLACE, path), show=True)}\n".replace("\n\n", "\n")
    with redirect_stdout(io.StringIO()) as printed:
        spark.sql(question).show(truncate=False)
    return printed.getvalue().strip() + "\n"


@pytest.fixture
def path(tmp_path, spark):
    table = LakeTable(str(tmp_path / "lake"))
    fill(table)
    opened(spark, table.path)
    yield table.path
    spark.catalog.dropTempView("messages")


def test_each_query_prints_what_the_page_shows(spark, path):
    questions = QUESTION.findall(PAGE.read_text())
    assert len(questions) == PAGE.read_text().count("```sql") > 6
    assert [answer(spark, path, question) for question, _ in questions] == [shown for _, shown in questions]


def main():
    from delayedq.pipeline.spark.session import start

    with tempfile.TemporaryDirectory() as directory:
        table = LakeTable(directory)
        fill(table)
        spark = start("local[2]")
        opened(spark, table.path)

        def answered(found):
            return f"```sql\n{found[1]}```\n\n```text\n{answer(spark, table.path, found[1])}```"

        PAGE.write_text(QUESTION.sub(answered, PAGE.read_text()))
        spark.stop()


if __name__ == "__main__":
    main()
