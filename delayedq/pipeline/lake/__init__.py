"""The lake as a table: which of its files count, since when, and what is in them. No Spark and no Django here.

It is a Delta Lake table, so any engine that reads Delta reads it. Spark writes the files (`pipeline.spark.lake`);
the books of what moved are in the database (`pipeline.books`).
"""
