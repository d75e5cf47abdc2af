"""PostgreSQL as a queue, the hand-written way: a table, FOR UPDATE SKIP LOCKED, synchronous commit."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from bench.peers.base import Line, Running, free_port, process

_FOUND = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
BIN = _FOUND[-1] if _FOUND else "/usr/lib/postgresql/bin"

TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    id bigserial PRIMARY KEY, visible_at timestamptz NOT NULL DEFAULT now(), body bytea NOT NULL
);
CREATE INDEX IF NOT EXISTS jobs_visible ON jobs (visible_at, id);
"""
TAKE = """
UPDATE jobs SET visible_at = now() + interval '30 seconds' WHERE id IN (
    SELECT id FROM jobs WHERE visible_at <= now() ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING id, body
"""


class SkipLocked:
    name = "PostgreSQL SKIP LOCKED"
    needs = (f"{BIN}/postgres", f"{BIN}/initdb")
    modules = ("psycopg",)
    durability = "synchronous commit: WAL fsynced before each answer"

    @contextlib.contextmanager
    def start(self, folder: str) -> Iterator[Running]:
        port = free_port()
        data = os.path.join(folder, "postgres")
        os.makedirs(data)
        as_other: list[str] = []
        if os.geteuid() == 0:
            # It refuses to run as root.
            shutil.chown(data, "postgres")
            os.chmod(folder, 0o711)  # noqa: S103
            as_other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        subprocess.run(
            [*as_other, f"{BIN}/initdb", "-D", data, "-A", "trust", "-U", "bench", "--no-instructions"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        command = [*as_other, f"{BIN}/postgres", "-D", data, "-p", str(port), "-k", data, "-h", "127.0.0.1"]
        with process(command, port) as started:
            yield Running(port, [started.pid], folder)

    async def connect(self, running: Running) -> Line:
        import psycopg

        address = f"host=127.0.0.1 port={running.port} user=bench dbname=postgres"
        for _ in range(100):
            with contextlib.suppress(psycopg.OperationalError):
                connection = await psycopg.AsyncConnection.connect(address, autocommit=True)
                break
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(1)")
            for statement in TABLE.strip().split(";\n"):
                await connection.execute(statement)  # type: ignore[arg-type]
        return _Line(connection)

    async def load_tool(self, running: Running) -> float | None:
        pgbench = f"{BIN}/pgbench"
        if not os.path.exists(pgbench):
            return None
        script = os.path.join(running.folder, "insert.sql")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"INSERT INTO jobs (body) VALUES ('{'x' * 1024}');\n")
        command = [pgbench, "-h", "127.0.0.1", "-p", str(running.port), "-U", "bench", "-n", "-M", "prepared"]
        said = subprocess.run(
            [*command, "-c", "64", "-j", "1", "-T", "4", "-f", script, "postgres"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        await (await self.connect(running)).close()
        return float(next(line.split()[2] for line in said.splitlines() if line.startswith("tps")))


class _Line:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._taken: list[int] = []

    async def send(self, bodies: Sequence[bytes]) -> None:
        await self._connection.execute("INSERT INTO jobs (body) SELECT unnest(%b::bytea[])", [list(bodies)])

    async def receive(self, count: int) -> int:
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(TAKE, [count])
        self._taken = [id for id, _ in await cursor.fetchall()]
        return len(self._taken)

    async def ack(self) -> None:
        await self._connection.execute("DELETE FROM jobs WHERE id = ANY(%b)", [self._taken])

    async def close(self) -> None:
        await self._connection.close()
