"""Forms of the Query protocol, read at little cost whatever they hold: a caller could send 5 MiB of percent signs."""

from __future__ import annotations

import re
from binascii import a2b_qp

FIELDS = 2000
"""Maximum number of fields of a form."""
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def read_form(*parts: bytes) -> dict[str, str]:
    """The fields of forms, which have different names; raises ValueError."""
    count = sum(part.count(b"&") + 1 for part in parts if part)
    if count > FIELDS:
        raise ValueError(f"it has {count} fields; at most {FIELDS} are allowed")
    fields: dict[str, str] = {}
    for part in parts:
        part.decode()
        bad = _BAD_ESCAPE.search(part)
        if bad is not None:
            raise ValueError(f"at byte {bad.start()}, a percent sign without two hexadecimal digits")
        for piece in part.split(b"&"):
            if not piece:
                continue
            raw, _, value = piece.partition(b"=")
            name = _decoded(raw)
            if name in fields:
                raise ValueError(f"{name[:80]} is given twice")
            fields[name] = _decoded(value)
    return fields


def _decoded(raw: bytes) -> str:
    raw = raw.replace(b"+", b" ")
    if b"%" in raw:  # quoted-printable is the same but for the sign, and decoded in C, thirty times as fast
        raw = a2b_qp(raw.replace(b"=", b"%3D").replace(b"%", b"="))
    return raw.decode()
