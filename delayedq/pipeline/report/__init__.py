"""The report: figures of what happened, measured on Spark, and a page that shows them. Nothing here imports Django.

`figures.measure` has Spark count the `facts` of the messages in one pass, and makes `tables` and plans (`capacity`) of
them; `page.write` makes the page.
"""
