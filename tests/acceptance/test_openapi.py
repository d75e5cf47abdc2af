"""Whatever the OpenAPI document allows, and much that it does not, is answered as it says and never with a 5xx.

`MINIQ_EXAMPLES` sets how many requests are made up for each operation (10 by default); the document's own examples, and
those at and beyond the limits of each field, are all sent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.serving import serving

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"

EXAMPLES = os.environ.get("MINIQ_EXAMPLES", "10")


def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    # Making a key would close the server to the requests that follow; a backup writes where it is told to; a stream of
    # events does not end (test_http_watching.py listens to it).
    with serving(f"rocksdb:{tmp_path / 'data'}") as served:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
                *("--checks", CHECKS, "--max-examples", EXAMPLES, "--seed", "1", "--no-color"),
                *("--exclude-operation-id", "create_key", "--exclude-operation-id", "backup"),
                *("--exclude-operation-id", "events"),
                *("--phases", "examples,coverage,fuzzing"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
        assert served.process.poll() is None
