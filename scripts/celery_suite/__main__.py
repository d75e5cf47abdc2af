"""Runs Celery's own integration tests on MiniQ and on Redis: `python scripts/celery_suite [OPTIONS OF PYTEST]`.

The tests are those of the source distribution of the installed version, which is downloaded to a temporary folder.
They run on MiniQ's transport and result backend and, where `redis-server` is installed, at the same time on Redis. Each
module has a process of its own: workers that tests start in their process end each other. A test that fails is not
repeated. `LEFT_OUT` names the tests that cannot apply to MiniQ, and why. It ends with 1 if less than 95 % of the tests
that pass on Redis pass on MiniQ: those that look into Redis itself do not count, others that are left out count as
not passed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

TARGET = 0.95
TEST_SECONDS, MODULE_SECONDS = 240, 2400
"""The most that a test, and the tests of a module, may take."""
RABBITMQ = "starts or looks into RabbitMQ"
CHANNELS = "looks into the channels of Redis"
KEYS = "looks into the keys that the backend for Redis makes"
HELD = "expects a task with an eta in the worker; here the broker holds it"
OF_REDIS = (CHANNELS, KEYS)
OTHER_SERVICES = {
    "test_backend.py": "is about Azure's storage",
    "test_native_delayed_delivery_binding.py": RABBITMQ,
    "test_quorum_queue_qos_cluster_simulation.py": RABBITMQ,
    "test_rabbitmq_chord_unlock_routing.py": RABBITMQ,
    "test_rabbitmq_default_queue_type_fallback.py": RABBITMQ,
    "test_rabbitmq_quorum_queue_cycle_detection.py": RABBITMQ,
}
"""Modules that run on neither, and why."""
LEFT_OUT: dict[str, str] = {
    "test_inspect.py::test_Inspect::test_scheduled": HELD,
    "test_canvas.py::test_chord::test_chord_on_error": KEYS,
    "test_canvas.py::test_chord::test_redis_subscribed_channels_leak": CHANNELS,
    "test_tasks.py::test_task_redis_result_backend": CHANNELS,
}
"""Tests that do not run on MiniQ, and why."""
SETTINGS = f"""
[pytest]
python_classes = test_*
xfail_strict = false
timeout = {TEST_SECONDS}
markers =
    amqp: needs RabbitMQ
    flaky: may be repeated, which is not done here
"""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="miniq-celery-") as folder, contextlib.ExitStack() as stack:
        path = Path(folder)
        suites = {"MiniQ": stack.enter_context(on_miniq(path))}
        if shutil.which("redis-server"):
            suites["Redis"] = stack.enter_context(on_redis(path))
        prepare(path)
        runs: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in suites}
        for tests in modules(path / "MiniQ", sys.argv[1:]):
            running = {name: start(path / name, environment, tests) for name, environment in suites.items()}
            try:
                for name, process in running.items():
                    runs[name] |= outcomes(path / name, process)
            finally:
                for process in running.values():
                    end(process)
        return report(runs)


def modules(suite: Path, options: list[str]) -> list[list[str]]:
    """The arguments of pytest, module by module, or by the tests that are asked for (`t/integration/…`)."""
    asked = [option for option in options if option.startswith("t/")]
    others = [option for option in options if option not in asked]
    found = sorted(path.name for path in (suite / "t" / "integration").glob("test_*.py"))
    tested = [
        name for name in found if name not in OTHER_SERVICES and not name.endswith(("_config.py", "_settings.py"))
    ]
    return [[tests, *others] for tests in asked or [f"t/integration/{name}" for name in tested]]


def prepare(folder: Path) -> None:
    """The tests, in a folder for each broker."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = f"celery=={version('celery')}"
    subprocess.run([*pip, "download", source, "--no-deps", "--no-binary", "celery", "-d", folder], check=True)
    (archive,) = folder.glob("celery-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder / "source", filter="data")
    (tests,) = (folder / "source").glob("celery-*/t")
    for name in ("MiniQ", "Redis"):
        suite = folder / name
        shutil.copytree(tests / "integration", suite / "t" / "integration")
        (suite / "t" / "__init__.py").touch()
        (suite / "pytest.ini").write_text(SETTINGS)
        conftest = suite / "t" / "integration" / "conftest.py"
        replace(conftest, "timeout(timeout=300)", f"timeout(timeout={TEST_SECONDS})")
    integration = folder / "MiniQ" / "t" / "integration"
    shutil.copy(HERE / "notebook.py", integration)
    replace(integration / "tasks.py", "\nlogger =", "\nfrom .notebook import get_redis_connection  # noqa\n\nlogger =")
    for module in integration.glob("test_*.py"):  # which need Redis only for the notes of their tasks
        for quote in "'\"":
            backend = f"result_backend.startswith({quote}redis{quote})"
            replace(module, backend, backend.replace(f"{quote}redis{quote}", "('redis', 'miniq')"))


def replace(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@contextlib.contextmanager
def on_miniq(folder: Path) -> Iterator[dict[str, str]]:
    """What the tests get from the environment to run on MiniQ."""
    from tests.serving import serving

    with serving("memory:", 0, "--no-zmq") as server:
        url = f"miniq://127.0.0.1:{server.port}"
        yield {"TEST_BROKER": url, "TEST_BACKEND": url, "NOTEBOOK": str(folder / "notebook.sqlite")}


@contextlib.contextmanager
def on_redis(folder: Path) -> Iterator[dict[str, str]]:
    from tests.serving import free_ports

    [port] = free_ports(1)
    flags = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(["redis-server", *flags], stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    try:
        yield {"TEST_BROKER": url, "TEST_BACKEND": url, "REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(port)}
    finally:
        end(process)


def start(suite: Path, environment: dict[str, str], options: list[str]) -> subprocess.Popen[bytes]:
    """Run some tests in a process, which writes `log` and `outcomes.xml`."""
    path = [str(suite), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    base = {name: value for name, value in os.environ.items() if not name.startswith("MINIQ_")}
    environment = base | environment | {"PYTHONPATH": os.pathsep.join(path)}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    left_out = [f"--deselect=t/integration/{name}" for name in LEFT_OUT if suite.name == "MiniQ"]
    (suite / "outcomes.xml").unlink(missing_ok=True)
    plugins = [option for name in ("cacheprovider", "asyncio", "xdist") for option in ("-p", f"no:{name}")]
    pytest = [sys.executable, "-m", "pytest", "-v", "-p", "celery.contrib.pytest"]
    with (suite / "log").open("ab") as log:
        return subprocess.Popen(
            [*pytest, *plugins, *left_out, "--junitxml=outcomes.xml", *options],
            cwd=suite,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process; pytest writes what it has found so far."""
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)


def outcomes(suite: Path, process: subprocess.Popen[bytes]) -> dict[str, tuple[str, str]]:
    """By test: passed, failed, skipped or xfailed, and why. Of several outcomes, as with subtests, the worst."""
    try:
        process.wait(MODULE_SECONDS)
    except subprocess.TimeoutExpired:
        end(process)
    if keep := os.environ.get("CELERY_SUITE_LOGS"):
        shutil.copy(suite / "log", Path(keep) / f"{suite.name}.log")
    if not (suite / "outcomes.xml").exists():
        sys.exit((suite / "log").read_text()[-5000:])
    found: dict[str, tuple[str, str]] = {}
    for case in ElementTree.parse(suite / "outcomes.xml").iter("testcase"):  # noqa: S314  pytest wrote it
        outcome, why = "passed", ""
        for part in case:
            text = (part.get("message") or "").strip().splitlines() or [""]
            if part.tag in ("failure", "error"):
                outcome, why = "failed", text[0]
            elif part.tag == "skipped" and outcome == "passed":
                outcome, why = "xfailed" if part.get("type") == "pytest.xfail" else "skipped", text[0]
        test = f"{case.get('classname', '').removeprefix('t.integration.')}::{case.get('name')}"
        if test not in found or outcome == "failed":
            found[test] = outcome, why
    return found


def report(runs: dict[str, dict[str, tuple[str, str]]]) -> int:
    """Print what passes on each and the reasons for the rest; 1 if it is less than the target."""
    print("left out on both: " + "; ".join(f"{name} {why}" for name, why in OTHER_SERVICES.items()))
    print("left out on MiniQ: " + "; ".join(f"{name} {why}" for name, why in LEFT_OUT.items()))
    for name, found in runs.items():
        for test, (outcome, why) in sorted(found.items()):
            if outcome != "passed":
                print(f"{name}: {outcome}: {test}: {why[:160]}")
    for name, found in runs.items():
        counts = Counter(outcome for outcome, _ in found.values())
        print(f"{name}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    ours, theirs = runs["MiniQ"], runs.get("Redis")
    passed = {test for test, (outcome, _) in ours.items() if outcome == "passed"}
    wanted = set(ours) if theirs is None else {test for test, (outcome, _) in theirs.items() if outcome == "passed"}
    of_redis = tuple(name.replace(".py::", ".", 1) for name, why in LEFT_OUT.items() if why in OF_REDIS)
    tied = {test for test in wanted if test.startswith(of_redis)}
    for test in sorted(wanted - passed):
        print(f"not on MiniQ: {test}: {' '.join(ours.get(test, ('left out', '')))[:160]}")
    counted = wanted - tied
    share = len(counted & passed) / max(len(counted), 1)
    if theirs is not None:
        print(f"{len(wanted)} pass on Redis, of which {len(tied)} look into Redis itself")
    print(f"celery {version('celery')}: of {len(counted)}, {len(counted & passed)} pass on MiniQ ({share:.1%})")
    return 0 if share >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
