"""Runs the unit and conformance tests (on the memory store) on every supported Python: `make pythons`.

A Python is taken from the path, else from pyenv, else from a Debian of its own that debootstrap makes (as root). Each
gets an environment of its own with MiniQ, its base dependencies and what these tests need.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts import debian_root

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
SUITES = {"3.13": "trixie", "3.14": "sid"}
"""The Debian that has a Python."""
TESTS = ("tests/unit", "tests/conformance")
COPIED = (
    "src", "tests", "docs", "examples", "ops", "bench", "scripts", "pyproject.toml", "constraints.txt",
    "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "Dockerfile",
    "compose.yaml",
)  # fmt: skip


def local(version: str) -> str | None:
    """A Python of this machine."""
    found = shutil.which(f"python{version}")
    if found is not None and _works(found):  # one of pyenv's shims may be of a version that is switched off
        return found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)
    return next((str(path) for path in candidates if _works(str(path))), None)


def _works(python: str) -> bool:
    return subprocess.run([python, "-c", "import venv, ssl, sqlite3"], capture_output=True, check=False).returncode == 0


def script(python: str, folder: str, workers: str) -> str:
    """What is run for one Python, in its copy of the project."""
    pip = "venv/bin/python -m pip install --quiet --disable-pip-version-check"
    tests = " ".join(TESTS)
    return f"""cd {folder} && {python} -m venv venv && {pip} --upgrade pip &&
    {pip} -c constraints.txt --prefer-binary . --group portable &&
    venv/bin/python -VV &&
    venv/bin/python -m pytest -q -n {workers} --stores memory -p no:cacheprovider {tests}"""


def test(version: str, work: Path, workers: str) -> tuple[str, bool]:
    """Test one version; what was used, and whether it went well."""
    copy = work / version
    copy.mkdir()
    for name in COPIED:
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "site")
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=ignore)
        elif source.exists():
            shutil.copy2(source, copy)
    python = local(version)
    if python is not None:
        env = {name: value for name, value in os.environ.items() if name not in ("CI", "VIRTUAL_ENV", "PYTHONPATH")}
        done = subprocess.run(["bash", "-c", script(python, str(copy), workers)], env=env, check=False)
        return python, done.returncode == 0
    if version not in SUITES or os.geteuid() != 0:
        return "not found", False
    debian_root.require()
    root, suite = work / f"debian-{version}", SUITES[version]
    debian_root.make(root, suite, (f"python{version}", f"python{version}-venv", "ca-certificates"))
    env = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    command = ["bash", "-c", script(f"python{version}", "/work", workers)]
    return f"Debian {suite}", debian_root.run(root, command, env, binds={"/work": str(copy)}) == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--workers", default="2", help="processes of pytest")
    asked = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="miniq-pythons-") as made:
        for version in asked.versions:
            print(f"--- Python {version}", flush=True)
            began = time.monotonic()
            used, passed = test(version, Path(made), asked.workers)
            results.append(passed)
            seconds = time.monotonic() - began
            print(f"=== Python {version} ({used}): {'passed' if passed else 'FAILED'}, {seconds:.0f} s", flush=True)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
