"""Tasks as a project has them that comes from Celery; only the import is another one."""

from delayedq.contrib.celery import shared_task


@shared_task
def add(x, y):
    return x + y


@shared_task(
    bind=True, max_retries=2, default_retry_delay=30, queue="mail", time_limit=20, soft_time_limit=10, acks_late=True
)
def fetch(self, url):
    """Fails until its last attempt."""
    if self.request.retries < self.max_retries:
        raise self.retry(exc=OSError(url), countdown=60)
    return [self.name, self.request.id, self.request.retries, self.request.delivery_info["routing_key"]]


@shared_task(autoretry_for=(OSError,), retry_backoff=2, retry_backoff_max=5, retry_jitter=False)
def unstable(error):
    raise {"OSError": OSError, "ValueError": ValueError}[error]("down")


@shared_task(bind=True, autoretry_for=(OSError,), retry_backoff=2, default_retry_delay=30)
def patient(self):
    """Asks for another attempt itself, without a time."""
    self.retry(exc=ValueError("not yet"))


of_mail = shared_task(bind=True, queue="mail", max_retries=9)


@of_mail
def first_of_mail(self): ...


@of_mail
def second_of_mail(self):
    return self.max_retries


@shared_task(bind=True, max_retries=1)
def hopeless(self):
    self.retry(exc=OSError("down"), countdown=0)


@shared_task(rate_limit="10/m", expires=30)
def limited(): ...


@shared_task(bind=True, max_retries=1)
def handled(self):
    try:
        raise OSError("down")  # noqa: TRY301
    except OSError:
        self.retry(countdown=0)
