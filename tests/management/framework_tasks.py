"""Tasks of other frameworks, as a project has them before it moves."""

from delayedq.compat import task


@task(backend="tasks_db")
def in_tasks_db(*args, **kwargs): ...


@task(backend="ox")
def in_ox(*args, **kwargs): ...


def in_django_q(*args, **kwargs): ...
