"""A server whose clock stands still, and boto3 as its client, by either protocol of SQS."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
import uvicorn

import miniq
from miniq.broker import Broker
from miniq.options import Options
from miniq.server.busy_poll import BusyPoll
from miniq.server.server import _config, bind
from miniq.store import open_store
from tests.clock import START, FrozenClock
from tests.conftest import store_url

try:
    import botocore.session
    from botocore.auth import SigV4Auth as SigV4Auth
    from botocore.auth import SigV4QueryAuth as SigV4QueryAuth
    from botocore.awsrequest import AWSRequest as AWSRequest
    from botocore.config import Config
    from botocore.credentials import Credentials as Credentials
    from botocore.exceptions import ClientError
    from botocore.loaders import Loader
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip("boto3 is not installed: make setup", allow_module_level=True)

T = TypeVar("T")
KEY, SECRET = "any", "thing"
ELEMENTS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "MessageList": "Message",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "TagKeyList": "TagKey",
}
"""What the elements of lists are called in the Query protocol."""
MAPS = {
    "MessageBodyAttributeMap": ("MessageAttribute", "Name"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name"),
    "MessageSystemAttributeMap": ("Attribute", "Name"),
    "QueueAttributeMap": ("Attribute", "Name"),
    "TagMap": ("Tag", "Key"),
}
"""What the entries of maps are called there, and their keys."""


class QueryLoader(Loader):
    """Loads botocore's model of SQS as it was when its protocol was Query."""

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        model = super().load_service_model(service_name, type_name, api_version)
        if (service_name, type_name) != ("sqs", "service-2"):
            return model
        metadata = {**model["metadata"], "protocol": "query", "protocols": ["query"]}
        for name in ("awsQueryCompatible", "jsonVersion", "targetPrefix"):
            metadata.pop(name, None)
        metadata["xmlNamespace"] = "http://queue.amazonaws.com/doc/2012-11-05/"
        shapes = {name: _named(name, shape) for name, shape in model["shapes"].items()}
        operations = {
            name: operation | {"output": operation["output"] | {"resultWrapper": f"{name}Result"}}
            if "output" in operation
            else operation
            for name, operation in model["operations"].items()
        }
        return {**model, "metadata": metadata, "shapes": shapes, "operations": operations}


def _named(name: str, shape: dict[str, Any]) -> dict[str, Any]:
    """A shape with the names that the Query protocol needs."""
    if name in ELEMENTS:
        return shape | {"member": shape["member"] | {"locationName": ELEMENTS[name]}}
    if name in MAPS:
        key = {"locationName": MAPS[name][1]}
        return shape | {"key": shape["key"] | key, "value": shape["value"] | {"locationName": "Value"}}
    if shape["type"] != "structure":
        return shape
    members = {
        field: member | {"locationName": MAPS[member["shape"]][0]} if member["shape"] in MAPS else member
        for field, member in shape["members"].items()
    }
    return shape | {"members": members}


def _session(loader: Loader) -> Any:
    session = botocore.session.Session()
    session.register_component("data_loader", loader)
    return session


SESSIONS = {"json": _session(Loader()), "query": _session(QueryLoader())}


def client(url: str, protocol: str = "json", key: str = KEY, secret: str = SECRET, service: str = "sqs") -> Any:
    """A client of boto3 that neither repeats a call nor asks for credentials."""
    return SESSIONS[protocol].create_client(
        service,
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=60, max_pool_connections=20),
    )


class SqsServer:
    """A server in a thread of this process, and a client of it."""

    def __init__(self, url: str, broker: Broker, loop: asyncio.AbstractEventLoop, clock: FrozenClock) -> None:
        self.url = url
        self.broker = broker
        self.clock = clock
        self._loop = loop
        self.protocol = "json"

    @property
    def client(self) -> Any:
        return client(self.url, self.protocol)

    @property
    def sns(self) -> Any:
        """A client of SNS, whose only protocol is Query."""
        return client(self.url, service="sns")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something in the thread of the server."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def advance(self, seconds: float) -> None:
        """Let time pass for the broker."""

        async def work() -> None:
            self.clock.advance(seconds)

        self.run(work())

    def native(self) -> miniq.Client:
        return miniq.connect(self.url)


@contextlib.contextmanager
def sqs_server(store: str, start: int = START) -> Iterator[SqsServer]:
    """A server on a store; the clock of its broker stands still, at `start`."""
    started = threading.Event()
    running: list[SqsServer] = []
    stop: list[Callable[[], None]] = []
    failures: list[BaseException] = []

    async def serve() -> None:
        options, clock = Options(upkeep_interval=0, zmq=False, busy_poll=0.0), FrozenClock(start)
        async with Broker(open_store(store, options), options, clock) as broker:
            with bind("127.0.0.1", 0) as listener:
                server = uvicorn.Server(_config(broker, options, BusyPoll(0.0), None))
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                running.append(SqsServer(url, broker, asyncio.get_running_loop(), clock))
                loop = asyncio.get_running_loop()

                def end() -> None:
                    broker.begin_shutdown()
                    server.should_exit = True

                stop.append(lambda: loop.call_soon_threadsafe(end))
                started.set()
                await server.serve(sockets=[listener])

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        started.wait(60)
        if failures:
            raise failures[0]
        yield running[0]
    finally:
        for one in stop:
            one()
        thread.join(60)
    if failures:
        raise failures[0]


def ask(
    sqs: SqsServer, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the reply to a request that is made by hand."""
    connection = http.client.HTTPConnection(urlsplit(sqs.url).netloc, timeout=30)
    try:
        connection.request(method, path, body, dict(headers or {}))
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def create(sqs: SqsServer, name: str = "q", **attributes: str) -> str:
    """Create a queue; its URL."""
    return str(sqs.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


def receive(sqs: SqsServer, url: str, **asked: Any) -> list[dict[str, Any]]:
    """Receive messages with all their attributes, unless asked for others."""
    asked = {
        "MaxNumberOfMessages": 10,
        "MessageSystemAttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
    } | asked
    messages: list[dict[str, Any]] = sqs.client.receive_message(QueueUrl=url, **asked).get("Messages", [])
    return messages


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


@contextlib.contextmanager
def refused(code: str, status: int = 400) -> Iterator[dict[str, Any]]:
    """The call within is refused with this code; afterwards the dictionary has the error's message."""
    told: dict[str, Any] = {}
    try:
        yield told
    except ClientError as error:
        response = error.response
        assert response["Error"]["Code"] == code, response
        assert response["ResponseMetadata"]["HTTPStatusCode"] == status
        assert response["Error"]["Type"] == "Sender"
        told |= response["Error"]
    else:
        raise AssertionError(f"the call was not refused with {code}")


KINDS = ("query", "rocksdb", "postgresql")
on_every_database = pytest.mark.parametrize("sqs", [*KINDS, "mongodb"], indirect=True)
"""For what a database could do in another way than the next one: who gets what, and in which order."""


@pytest.fixture(params=KINDS)
def sqs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqsServer]:
    """A server that boto3 speaks to: by the Query protocol on the memory store, by JSON on the others. SQS is a
    translation of calls of the broker, which are tested on all stores, so one database is enough."""
    kind = request.param
    with sqs_server("memory:" if kind == "query" else store_url(kind, tmp_path)) as served:
        served.protocol = "query" if kind == "query" else "json"
        yield served
