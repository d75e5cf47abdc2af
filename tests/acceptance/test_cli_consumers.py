"""`miniq consumers`, over HTTP and on a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shell import Shell, on_folder, serving
from tests.server import clear


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with serving(tmp_path_factory.mktemp("broker")) as shell:
        yield shell


@pytest.fixture(params=["http", "folder"])
def miniq(request: pytest.FixtureRequest, server: Shell, tmp_path: Path) -> Shell:
    if request.param == "folder":
        return on_folder(tmp_path)
    clear(server.url)
    return server


def test_the_consumers_of_a_queue_are_shown(miniq: Shell) -> None:
    miniq("send", "emails", "1", "2", "3")
    assert miniq("consumers", "emails").lines == ["no consumer in the last five minutes"]
    miniq("receive", "emails", "--max", "2", "--consumer", "ann", "--visibility-timeout", "10m")
    miniq("receive", "emails", "--visibility-timeout", "10m")
    head, ann, unnamed = miniq("consumers", "emails").lines
    assert head.split() == ["CONSUMER", "IN", "FLIGHT", "RECEIVED", "ACKED", "FAILED", "LAST", "SEEN"]
    assert ann.split()[:5] == ["ann", "2", "2", "0", "0"]
    assert unnamed.split()[:5] == ["(unnamed)", "1", "1", "0", "0"]
    assert re.search(r"(\bnow| ago)$", unnamed)
    found = miniq("consumers", "emails", "--json").objects
    assert [(one["name"], one["in_flight"]) for one in found] == [("ann", 2), (None, 1)]
    assert "there is no queue 'none'" in miniq("consumers", "none", code=1).err
