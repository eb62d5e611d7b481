"""The report: figures of what happened, measured on Spark, and a page that shows them. Nothing here imports Django.

`figures.measure` computes them all, from `analytics`, `backlog` and `capacity`; `writing.write` makes the page of them.
"""
