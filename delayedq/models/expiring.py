"""Return values that go before their history does, of tasks with a `result_retention`. No other message has a row."""

from __future__ import annotations

from django.db import models


class ExpiringResult(models.Model):
    """Until when the return value of a message is kept. The transaction that ends the message writes it.

    There is no foreign key: the history of the message may be pruned or archived before.
    """

    message_id = models.BigIntegerField(primary_key=True)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"result of message {self.message_id} until {self.expires_at}"
