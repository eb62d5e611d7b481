"""Values reach SQL as parameters. What is put into the text of a statement is a constant, or made by a closed list."""

from __future__ import annotations

import ast
import re
from itertools import permutations

from tests.test_architecture import FILES, PACKAGE, may_hold_sql, nodes, none_of, place

STATEMENT = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|FROM|WHERE|VALUES|SET|RETURNING|JOIN|ORDER BY)\b")
CONSTANT = re.compile(r"(\w+\.)*_{0,2}[A-Z][A-Z_0-9]*(\[[^]]+\])*")

#: They make SQL of names of columns and of conditions of the code; none is given a value of a message.
MAKERS = {
    "digest_in_sql", "due_matching", "expired", "free", "given_priority", "history", "leased", "listed",
    "moved_priority", "of_running_task", "one_more", "readable", "unleased",
}  # fmt: skip
#: What they take is of the code as well: an alias of a table, the name of a column, a condition with placeholders.
TAKEN = {
    ("pipeline/spark/reading.py", "condition"),
    ("pipeline/spark/reading.py", "selected"),
    ("pipeline/spark/reading.py", "table"),
    ("pipeline/spark/writing.py", "key"),
    ("pipeline/spark/writing.py", "now"),
    ("pipeline/spark/writing.py", "week"),
    ("pipeline/spark/writing.py", "won"),
    ("store/mysql/sql.py", "name"),
    ("store/mysql/sql.py", "which"),
    # Of many lanes in one statement: their numbers, and their parts by `operator._ONE_LANE` with placeholders.
    ("store/operator.py", "along"),
    ("store/operator.py", "number"),
    ("store/operator.py", "oldest"),
    ("store/operator.py", "one"),
    ("store/operator.py", "part(due, '1')"),
    ("store/operator.py", "part(state, '%(most)s')"),
    ("store/operator.py", "place"),
    ("store/postgresql/sql.py", "condition"),
    ("store/postgresql/sql.py", "ids"),
    ("store/postgresql/sql.py", "message"),
    ("store/postgresql/sql.py", "tests"),
}


def statements(path):
    """The f-strings that are SQL."""
    for node in nodes(path):
        if isinstance(node, ast.JoinedStr):
            text = "".join(one.value for one in node.values if isinstance(one, ast.Constant))
            if STATEMENT.search(text):
                yield node


def inserted(node):
    return [one.value for one in node.values if isinstance(one, ast.FormattedValue)]


def is_of_the_code(path, value):
    name = ast.unparse(value.func if isinstance(value, ast.Call) else value)
    if (str(path.relative_to(PACKAGE)), ast.unparse(value)) in TAKEN:
        return True
    if isinstance(value, ast.Call):
        maker = name.rpartition(".")[2]
        of_a_constant = maker in {"format", "replace"} and CONSTANT.fullmatch(name.rpartition(".")[0])
        return maker in MAKERS or bool(of_a_constant) or name in {"', '.join", "' '.join", "' AND '.join"}
    return bool(CONSTANT.fullmatch(name))


def test_what_is_put_into_a_statement_is_of_the_code():
    paths = [path for path in FILES if may_hold_sql(path) and path.parent.name != "migrations"]
    found = [(path, node, value) for path in paths for node in statements(path) for value in inserted(node)]

    assert len(found) > 100
    others = [one for one in found if not is_of_the_code(one[0], one[2])]
    none_of([f"{place(path, node.lineno)} {ast.unparse(value)}" for path, node, value in others])
    named = {(str(path.relative_to(PACKAGE)), ast.unparse(value)) for path, _, value in found}
    none_of([f"{path} {name}: nothing takes it any more" for path, name in sorted(TAKEN - named)])


def test_no_statement_is_made_by_percent_or_plus():
    """`"... %s" % value` looks like a placeholder, and is none."""
    operations = [
        (path, node)
        for path in FILES
        if may_hold_sql(path)
        for node in nodes(path)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add)
    ]
    pairs = [(path, *two) for path, node in operations for two in permutations((node.left, node.right))]
    texts = [
        (path, side.lineno, side.value)
        for path, side, other in pairs
        if isinstance(side, ast.Constant) and not (isinstance(other, ast.JoinedStr) or is_of_the_code(path, other))
    ]

    none_of([f"{place(path, line)} {text}" for path, line, text in texts if STATEMENT.search(str(text))])
