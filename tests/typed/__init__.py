"""What type checkers say of a project's code: mypy and pyright read this folder, and nothing runs it.

`right` must be without a finding. In `wrong` each line must have one: an `ignore` that ignores nothing is an error, to both.
"""
