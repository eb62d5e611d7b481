"""A view for pages that show how far a message has come.

    path("status/<str:token>/", delayedq.views.status, name="status")

The page gets the token of a message from `result.signed_id`. It says nothing of arguments, results or errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core import signing
from django.http import Http404, JsonResponse
from django.utils.module_loading import import_string
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from delayedq.compat import InvalidTaskBackend, TaskResultDoesNotExist, task_backends
from delayedq.conf import get_settings
from delayedq.results.message import SALT

if TYPE_CHECKING:
    from django.http import HttpRequest

    from delayedq.core.progress import Progress

#: What tells that a token is that of no message: it is no token, or its message or its backend was removed.
_UNKNOWN = (signing.BadSignature, TaskResultDoesNotExist, InvalidTaskBackend, NotImplementedError, ValueError)


@require_safe
@never_cache
def status(request: HttpRequest, token: str) -> JsonResponse:
    """The state of the message, and its progress, as JSON.

    Raises Http404 for a token that was not signed here, for a message that was deleted or whose backend was removed,
    and for a reader whom DELAYEDQ["STATUS_PERMISSION"] refuses: a function (or its dotted path) that takes the request
    and the result.
    """
    try:
        backend, id_ = signing.loads(token, salt=SALT)
        result = task_backends[backend].get_result(id_)
    except _UNKNOWN:
        raise Http404("There is no such message.") from None
    if not _may_see(request, result):
        raise Http404("There is no such message.")
    return JsonResponse(_state(result))


def _may_see(request: HttpRequest, result: Any) -> bool:
    permission = get_settings().STATUS_PERMISSION
    if permission is None:
        return True
    return bool((import_string(permission) if isinstance(permission, str) else permission)(request, result))


def _state(result: Any) -> dict[str, Any]:
    progress: Progress | None = result.progress
    about = None
    if progress is not None:
        about = {"done": progress.done, "total": progress.total, "note": progress.note, "share": progress.share}
        about["seconds_left"] = None if progress.left is None else round(progress.left.total_seconds(), 1)
    return {
        "id": result.id,
        "state": result.outcome or result.status.value.lower(),
        "is_finished": result.is_finished,
        "progress": about,
    }
