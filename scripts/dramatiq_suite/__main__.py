"""Runs Dramatiq's own tests against MiniQ: `python scripts/dramatiq_suite [OPTIONS OF PYTEST]`.

The tests are those of the source distribution of the installed version, which is downloaded to a temporary folder. It
has no fixtures; `fixtures.py` gives those of the same names, on a real MiniQ server: brokers and workers called "stub",
"redis" and "rabbitmq" are MiniQ's. `LEFT_OUT` names the tests that cannot apply, and why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

STUB = "looks into the queues of StubBroker in memory"
UNDECLARED = "StubBroker refuses messages to undeclared queues; RedisBroker and MiniQBroker do not"
REDIS = "looks into Redis with commands of its own"
REDIS_ERRORS = "fakes errors of Redis by replacing methods of RedisBroker"
RABBITMQ = "looks into RabbitMQ's connections and channels"
PIKA = "makes connections of pika"
AT_ONCE = "expects messages in the memory of the worker the moment they are sent"
WATCHER = "is about the watcher of files of the command, in which no broker takes part"
ANY_QUEUE = "consumes a queue that was not declared, which the interface forbids"
# ruff: noqa: E501
LEFT_OUT = {
    "test_actors.py::test_actors_can_be_sent_messages": STUB,
    "test_actors.py::test_worker_handles_non_numeric_eta_and_logs_warning": STUB,
    "test_actors.py::test_worker_handles_none_eta": STUB,
    "test_broker.py::test_can_instantiate_brokers_without_middleware": PIKA,
    "test_rabbitmq.py::test_rabbitmq_broker_stops_retrying_declaring_queues_when_max_attempts_reached": RABBITMQ,
    "test_rabbitmq.py::test_rabbitmq_broker_reconnects_after_enqueue_failure": RABBITMQ,
    "test_rabbitmq.py::test_rabbitmq_workers_handle_rabbit_failures_gracefully": RABBITMQ,
    "test_rabbitmq.py::test_rabbitmq_connections_can_be_deleted_multiple_times": RABBITMQ,
    "test_rabbitmq.py::test_rabbitmq_channels_can_be_deleted_multiple_times": RABBITMQ,
    "test_rabbitmq.py::test_rabbitmq_consumers_ignore_unknown_messages_in_ack_and_nack": ANY_QUEUE,
    "test_rabbitmq.py::test_rabbitmq_broker_retries_declaring_queues_when_connection_related_errors_occur": RABBITMQ,
    "test_rabbitmq.py::test_rabbitmq_broker_consuming_messages_re_declares_queues_when_declared_queue_disappears": RABBITMQ,
    "test_rabbitmq.py::test_rabbitmq_broker_enqueueing_message_re_declares_queues_when_declared_queue_disappears": RABBITMQ,
    "test_redis.py::test_redis_unacked_messages_can_be_requeued": REDIS,
    "test_redis.py::test_redis_messages_can_be_dead_lettered": REDIS,
    "test_redis.py::test_redis_dead_lettered_messages_are_cleaned_up": REDIS,
    "test_redis.py::test_redis_messages_belonging_to_missing_actors_are_rejected": REDIS,
    "test_redis.py::test_redis_requeues_unhandled_messages_on_shutdown": REDIS,
    "test_redis.py::test_redis_requeues_unhandled_delay_messages_on_shutdown": REDIS,
    "test_redis.py::test_redis_broker_can_connect_via_url": REDIS,
    "test_redis.py::test_redis_broker_can_connect_via_client": REDIS,
    "test_redis.py::test_redis_consumer_ack_can_retry_on_connection_error": REDIS_ERRORS,
    "test_redis.py::test_redis_consumer_nack_can_retry_on_connection_error": REDIS_ERRORS,
    "test_redis.py::test_redis_join_race_condition": REDIS,
    "test_stub_broker.py::test_stub_broker_raises_queue_error_when_enqueueing_messages_on_undeclared_queues": UNDECLARED,
    "test_stub_broker.py::test_stub_broker_can_be_flushed": STUB,
    "test_watch.py": WATCHER,
    "test_worker.py::test_workers_process_messages_in_order": AT_ONCE,
    "test_stub_broker.py::test_stub_broker_respects_prefetch": STUB,
}
"""Tests that are not run, and why."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="miniq-dramatiq-") as folder:
        suite = prepare(Path(folder))
        return run(suite, sys.argv[1:])


def prepare(folder: Path) -> Path:
    """The tests with our fixtures, in a package of their own."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = f"dramatiq=={version('dramatiq')}"
    subprocess.run([*pip, "download", source, "--no-deps", "--no-binary", "dramatiq", "-d", folder], check=True)
    subprocess.run([*pip, "install", "--target", folder / "clients", "redis", "pika"], check=True)  # only imported
    (archive,) = folder.glob("dramatiq-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    suite = folder / "suite"
    shutil.copytree(next(folder.glob("dramatiq-*/tests")), suite / "tests")
    shutil.copy(HERE / "fixtures.py", suite / "tests" / "conftest.py")
    shutil.copy(HERE / "common.py", suite / "tests" / "common.py")
    (suite / "tests" / "__init__.py").touch()
    for name in ("test_cli.py", "test_pidfile.py", "test_watch.py"):  # modules of workers: their broker is MiniQ's too
        module = suite / "tests" / name
        text = module.read_text()
        module.write_text(
            text.replace("from dramatiq.brokers.redis import RedisBroker", "from .common import RedisBroker")
        )
    return suite


def run(suite: Path, options: list[str]) -> int:
    from tests.serving import serving

    path = [str(suite.parent / "clients"), str(suite), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    left_out = [f"--deselect=tests/{name}" for name in LEFT_OUT]
    with serving("memory:", 0, "--no-zmq") as server:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "MINIQ_TEST_BROKER": server.url}
        # On SIGHUP, Dramatiq starts the first `python` of the path again.
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", *left_out, *options],
            cwd=suite,
            env=environment,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
