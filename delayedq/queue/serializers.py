"""Serializers convert payloads to text and back. The type is part of a queue's stored name, so that the messages of a
queue are only read by a serializer of the type that wrote them.

A custom serializer is any object with these three members:

    class Xml:
        type_name = "xml"

        def serialize(self, payload: Element) -> str:
            return tostring(payload, encoding="unicode")

        def deserialize(self, text: str) -> Element:
            return fromstring(text)
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Protocol

from delayedq.core.serialization import dumps, loads
from delayedq.exceptions import CannotRun, NotStorable


class Serializer[P](Protocol):
    """What converts the payloads of a queue to text and back; see the module for an example."""

    @property
    def type_name(self) -> str:
        """Part of the queue's stored name: queues with the same name and different types are different queues."""

    def serialize(self, payload: P) -> str:
        """Return the text to store; equal payloads should have equal texts. Raises InvalidMessage."""

    def deserialize(self, text: str) -> P:
        """Return the payload. Raises ValueError if the text can't be read; the message becomes a dead letter."""


class JSONSerializer:
    """The types that task arguments may have: JSON, dates, UUIDs, Decimals, sets, saved model instances and so on."""

    type_name = "json"

    def serialize(self, payload: Any) -> str:
        """Return the payload as JSON. Raises NotStorable, naming the place, for a value without a JSON form."""
        return dumps(payload, where="payload")

    def deserialize(self, text: str) -> Any:
        """Return the payload with its types. Raises ValueError, also if a model instance it refers to was deleted."""
        try:
            return loads(text)
        except CannotRun as error:
            raise ValueError(str(error)) from error


class TextSerializer:
    """A str, stored unchanged."""

    type_name = "text"

    def serialize(self, payload: str) -> str:
        """Return the text itself. Raises NotStorable for another type."""
        if not isinstance(payload, str):
            raise NotStorable(f"The payload of a queue of texts is a str, not {payload!r}.")
        return payload

    def deserialize(self, text: str) -> str:
        """Return the text itself."""
        return text


class BytesSerializer:
    """Bytes, in base64."""

    type_name = "bytes"

    def serialize(self, payload: bytes) -> str:
        """Return the bytes in base64. Raises NotStorable for another type."""
        if not isinstance(payload, bytes):
            raise NotStorable(f"The payload of a queue of bytes is bytes, not {payload!r}.")
        return b64encode(payload).decode()

    def deserialize(self, text: str) -> bytes:
        """Return the bytes. Raises ValueError for a text that is not base64."""
        return b64decode(text, validate=True)


JSON = JSONSerializer()
TEXT = TextSerializer()
BYTES = BytesSerializer()
