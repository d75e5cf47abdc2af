"""Forms of the Query protocol."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniq.server.http.aws.forms import FIELDS, read_form

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(names, names, max_size=8))
def test_a_form_is_read_as_it_was_written(fields: dict[str, str]) -> None:
    assert read_form(urlencode(fields).encode()) == fields


@given(st.binary(max_size=20), st.text("ab=+%4142\r\n _.", max_size=40))
def test_what_is_read_is_what_the_standard_library_reads(value: bytes, text: str) -> None:
    raw = b"a=" + text.encode() + b"".join(b"%%%02x" % byte for byte in value)
    try:
        fields = read_form(raw)
    except ValueError:
        assert "%" in text or value.decode("utf-8", "replace").encode() != value
    else:
        assert fields == dict(parse_qsl(raw.decode(), keep_blank_values=True))


def test_a_form_with_too_many_fields_a_bad_escape_other_bytes_than_utf8_or_a_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{FIELDS + 1} fields"):
        read_form(b"&" * FIELDS)
    with pytest.raises(ValueError, match="at byte 3"):
        read_form(b"a=b%4")
    with pytest.raises(ValueError, match="byte 0xff"):
        read_form(b"a=%ff")
    with pytest.raises(ValueError, match="Action is given twice"):
        read_form(b"Action=ListQueues", b"Action=DeleteQueue")
