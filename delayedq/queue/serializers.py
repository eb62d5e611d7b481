"""How payloads become text and come back. A queue's messages are read by the serializer that wrote them, or not at all.

A serializer of your own is any object with these three members:

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
    @property
    def type_name(self) -> str:
        """Part of the queue's stored name: queues of one name and two types never see each other's messages."""

    def serialize(self, payload: P) -> str:
        """The stored text; equal payloads should have equal texts. Raises InvalidMessage for what has none."""

    def deserialize(self, text: str) -> P:
        """Raises ValueError if no payload reads so; the message is then set aside as failed."""


class JSONSerializer:
    """What tasks take as arguments: JSON, and dates, UUIDs, Decimals, sets, saved model instances and so on."""

    type_name = "json"

    def serialize(self, payload: Any) -> str:
        return dumps(payload, where="payload")

    def deserialize(self, text: str) -> Any:
        try:
            return loads(text)
        except CannotRun as error:
            raise ValueError(str(error)) from error


class TextSerializer:
    """A str as it is."""

    type_name = "text"

    def serialize(self, payload: str) -> str:
        if not isinstance(payload, str):
            raise NotStorable(f"The payload of a queue of texts is a str, not {payload!r}.")
        return payload

    def deserialize(self, text: str) -> str:
        return text


class BytesSerializer:
    """Bytes, in base64."""

    type_name = "bytes"

    def serialize(self, payload: bytes) -> str:
        if not isinstance(payload, bytes):
            raise NotStorable(f"The payload of a queue of bytes is bytes, not {payload!r}.")
        return b64encode(payload).decode()

    def deserialize(self, text: str) -> bytes:
        return b64decode(text, validate=True)


JSON = JSONSerializer()
TEXT = TextSerializer()
BYTES = BytesSerializer()
