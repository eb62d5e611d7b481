"""Those of a worker in which limits allow ten times as many as the tasks say: the judge must find it."""

from functools import wraps

import delayedq
from tests.worker_settings import *  # noqa: F403


@wraps(delayedq.Limit)
def _broken(concurrency=None, **options):
    return _right(concurrency=concurrency and 10 * concurrency, **options)


_right, delayedq.Limit = delayedq.Limit, _broken
