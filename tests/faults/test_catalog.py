"""Each fault that can be made to happen here, once; `make faults` does each many times, and names the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.ahead import ahead
from tests.faults.catalog import FAULTS, Fault
from tests.faults.checker import Verdict

POSSIBLE = [fault for fault in FAULTS if not fault.lacks()]


@pytest.fixture(scope="module")
def verdict_on(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Fault], Verdict]]:
    yield from ahead(request, "fault", lambda fault: fault.round("short-7", tmp_path_factory.mktemp("fault")))


@pytest.mark.parametrize("fault", POSSIBLE, ids=lambda fault: f"{fault.inject.__name__}-{fault.store}")
def test_a_fault_breaks_no_promise(fault: Fault, verdict_on: Callable[[Fault], Verdict]) -> None:
    verdict = verdict_on(fault)
    assert verdict.good, [str(violation) for violation in verdict.violations]
    assert verdict.sent > 20
