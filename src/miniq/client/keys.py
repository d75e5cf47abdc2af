"""The calls about keys: not for programs, which do not make keys, but for the command line, on any server."""

from __future__ import annotations

from miniq.api.shapes import KeyReply
from miniq.client.calls import Call


class CreateKey(Call[KeyReply], frozen=True):
    """An API key, or, with its public half, a CURVE key."""

    name: str
    allow: list[str]
    public: str | None = None


class ListKeys(Call[list[KeyReply]], frozen=True):
    pass


class RevokeKey(Call[None], frozen=True):
    id: str
