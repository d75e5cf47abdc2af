"""Requests that would become much larger in memory: what they cost a real server, with and without a key."""

from __future__ import annotations

import http.client
import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import zmq

import miniq
from tests.serving import Served, serving

REQUEST = 16 * 1024 * 1024 - 200
MOST = 80
"""MiB that a request of 16 may add; 40 to 57 were seen."""
PACKED, ARROW = "application/msgpack", "application/vnd.apache.arrow.stream"
MESSAGES, STAGE = "/v1/queues/q/messages", "/v1/queues/q/stages/j/b/p/a"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving("memory:") as served:
        # The first table that comes in makes the server load pyarrow: 60 to 70 MiB that no flood is to blame for.
        assert post(served, MESSAGES, stream(pa.schema([("body", pa.string())])), ARROW)[0] < 500
        yield served


def memory(served: Served, name: str) -> float:
    """A figure of the server's memory in MiB."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


def cost(served: Served, request: Callable[[], object]) -> float:
    """MiB that a request adds at its peak."""
    before = memory(served, "VmRSS")
    Path(f"/proc/{served.process.pid}/clear_refs").write_text("5")  # resets the peak
    request()
    return memory(served, "VmHWM") - before


def post(served: Served, path: str, body: bytes, kind: str, method: str = "POST") -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request(method, path, body, {"content-type": kind})
    with connection.getresponse() as reply:
        answer = reply.status, json.loads(reply.read())
    connection.close()
    return answer


def packed(count: int, value: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + value * count


def stream(schema: pa.Schema, *batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def null_rows(rows: int) -> bytes:
    schema = pa.schema([("body", pa.null())])
    return stream(schema, pa.RecordBatch.from_arrays([pa.nulls(rows)], schema=schema))


def empty_batches(size: int) -> bytes:
    schema = pa.schema([(name, pa.string()) for name in ("body", "key", "group", "recipient", "dedup_id")])
    empty = pa.RecordBatch.from_arrays([pa.array([], pa.string())] * 5, schema=schema)
    return stream(schema, *[empty] * (size // len(stream(schema, empty))))


FLOODS = {
    "maps as messages in MessagePack": (MESSAGES, lambda: b"\x81\xa8messages" + packed(REQUEST, b"\x80"), PACKED),
    "maps in a body in MessagePack": (MESSAGES, lambda: b"\x81\xa4body" + packed(REQUEST, b"\x80"), PACKED),
    "maps as messages in JSON": (MESSAGES, lambda: b'{"messages":[' + b"{}," * (REQUEST // 3) + b"{}]}", ""),
    "lists in a setting": ("/v1/queues/q", lambda: b'{"x":[' + b"[]," * (REQUEST // 3) + b"[]]}", ""),
    "lists in a short route": ("/push_message", lambda: b'{"msg":[' + b"[]," * (REQUEST // 3) + b"[]]}", ""),
    "rows of nulls": (MESSAGES, lambda: null_rows(2_000_000_000), ARROW),
    "rows of nulls in an upload": (STAGE, lambda: null_rows(2_000_000_000), ARROW),
    "batches without rows in an upload": (STAGE, lambda: empty_batches(2 * REQUEST), ARROW),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_request_that_would_become_large_in_memory_costs_little(served: Served, flood: str) -> None:
    path, body, kind = FLOODS[flood]
    raw = body()
    method = "PUT" if path == "/v1/queues/q" else "POST"
    answers = []
    assert cost(served, lambda: answers.append(post(served, path, raw, kind, method))) < MOST
    assert answers[0][0] == 413


def test_over_zeromq_the_key_is_checked_before_a_request_is_decoded(tmp_path: Path) -> None:
    store = f"rocksdb:{tmp_path / 'data'}"
    with miniq.connect(store) as mq:
        mq.create_key("ops", ["*"])
    with serving(store) as served, zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.linger, client.rcvtimeo = 0, 60_000
        client.connect(served.tcp)
        for field, code in (("type", "too_large"), ("payload", "unauthorized"), ("api_key", "too_large")):
            for raw in (
                b'{"%b":[' % field.encode() + b"[]," * (REQUEST // 3) + b"[]]}",
                b"\x81" + bytes([0xA0 + len(field)]) + field.encode() + packed(REQUEST, b"\x80"),
            ):
                answers = []

                def ask(raw: bytes = raw, answers: list[bytes] = answers) -> None:
                    client.send(raw)
                    answers.append(client.recv())

                assert cost(served, ask) < MOST
                assert code.encode() in answers[0]
