"""What offers and replacements do to the model of limits and to the store: which find room, and what they drop."""

from __future__ import annotations

from dataclasses import replace

from delayedq.exceptions import QueueFull
from delayedq.limits.rules import OnFull, Size
from delayedq.models import Message
from tests.limits.channels import in_channel
from tests.limits.limits_model import Known
from tests.store.given import at

#: So that a long run does not slow down, no more are offered when so many messages live.
MOST = 60


class Offers:
    """Of a `limits_run.Run`."""

    def offer(self, channel, kind, queue, number, delay):
        due = self.now + delay
        for _ in range(min(number, MOST - len(self.model.messages))):
            self.number += 1
            self._offer(Known(kind, channel, queue, due), f"{self.number}")

    def _offer(self, one, key):
        fields = {"scheduled_at": at(one.due), "sizes": self._sizes(one), "max_attempts": 99}
        new = in_channel(one.channel, key, kind=one.kind, queue=one.queue, **fields)
        offered = self._pass(new, [limit for scope, limit, _ in self.model.scopes(one) if self._is_full(scope, limit)])
        if offered == "created":
            self.model.messages[Message.objects.values_list("pk", flat=True).get(kind=one.kind, key=key)] = one

    def _sizes(self, one):
        scopes = ((scope, self.model.defined(scope)) for scope in ("the-api", one.kind, one.queue, ""))
        return tuple(Size(scope, limit.size, limit.on_full) for scope, limit in scopes if limit.size)

    def _pass(self, new, full):
        """Offer it; `full`: what it comes into, and has no room. Returns the outcome."""
        try:
            outcome = self.here.offer(new).outcome
        except QueueFull:
            assert any(limit.on_full == OnFull.RAISE for limit in full)
            return "refused"
        gone = self._gone() if full else set()
        if outcome == "dropped":
            assert full
            assert not gone
        else:
            assert len(gone) >= bool(full) or self.is_moved or self.now - self.moved_at < 1
            assert len(gone) <= len(full)
        for id_ in gone:
            dropped = self.model.messages.pop(id_)
            assert not dropped.holds(self.now)
        return outcome

    def _is_full(self, scope, limit):
        code = self.model.defined("" if isinstance(scope, tuple) else scope)
        return code.size is not None and limit.size is not None and len(self.model.within(scope)) >= limit.size

    def _gone(self):
        return self.model.messages.keys() - set(Message.objects.values_list("id", flat=True))

    def replace(self, which, delay, channel, queue):
        """Also what is held: then it runs once more, and its attempt has its place where it started."""
        one = [*self.model.messages.items()][which % len(self.model.messages) :][:1] if self.model.messages else []
        for id_, known in one:
            key = Message.objects.values_list("key", flat=True).get(pk=id_)
            after = replace(known, channel=channel or known.channel, queue=queue or known.queue, due=self.now + delay)
            fields = {"scheduled_at": at(after.due), "sizes": self._sizes(after), "max_attempts": 99}
            payload = f"[{self.now}, {which}, {delay}]"
            new = in_channel(after.channel, key, payload=payload, kind=known.kind, queue=after.queue, **fields)
            if self._pass(new, self._full_there(known, after)) == "updated":
                if known.home != after.home:
                    self.moved_at = self.now
                    if known.holds(self.now):
                        self.model.orphaned(known)
                known.due, known.is_replaced = after.due, known.claimed is not None
                known.channel, known.queue, known.blocks = after.channel, after.queue, False

    def _full_there(self, known, after):
        """The limits without room that a message comes into by being replaced."""
        left = {scope for scope, _, _ in self.model.scopes(known)}
        return [
            limit for scope, limit, _ in self.model.scopes(after) if scope not in left and self._is_full(scope, limit)
        ]
