"""Each fault that can be made to happen here, once; `make faults` does each many times, and names the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalog import FAULTS, Fault

POSSIBLE = [fault for fault in FAULTS if not fault.lacks()]


@pytest.mark.parametrize("fault", POSSIBLE, ids=lambda fault: f"{fault.inject.__name__}-{fault.store}")
def test_a_fault_breaks_no_promise(fault: Fault, tmp_path: Path) -> None:
    verdict = fault.round("short-7", tmp_path)
    assert verdict.good, [str(violation) for violation in verdict.violations]
    assert verdict.sent > 20
