"""What the site of the traveller enqueues: Django decides if the request is a transaction."""

from django.http import HttpResponse
from journey.tasks import plain


def send(request, number):
    plain.enqueue(number)
    if request.GET.get("fail"):
        raise RuntimeError("The request fails after it has enqueued.")
    return HttpResponse("sent")
