"""`miniq.App` in one process: tasks, handlers, typed bodies, hooks, `drain` and the fixture of pytest."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

import miniq
from miniq.testing import drain
from tests.node import node


@dataclasses.dataclass
class Order:
    id: int
    due: datetime.date | None = None


class Line(msgspec.Struct):
    sku: str
    quantity: int


class Person(TypedDict):
    name: str


class Numbers(pydantic.BaseModel):
    values: list[int]


class Model(pydantic.BaseModel):
    email: str
    age: int = pydantic.Field(ge=0)


@pytest.fixture
def app() -> Iterator[miniq.App]:
    with miniq.App("memory:") as app:
        yield app


def rest(app: miniq.App, queue: str) -> int:
    """How many messages are left in a queue."""
    return app.queue(queue).info().counts.total


def test_a_task_is_called_here_and_sent_there(app: miniq.App) -> None:
    seen = []

    @app.task(queue="emails")
    def welcome(to: str, name: str = "nobody", *, times: int = 1) -> str:
        seen.append((to, name, times))
        return to

    assert welcome("a") == "a"
    job = welcome.send("b", times=2)
    assert seen == [("a", "nobody", 1)]
    assert drain(app) == 1
    assert seen == [("a", "nobody", 1), ("b", "nobody", 2)]
    assert (job.task, rest(app, "emails")) == (welcome, 0)


def test_the_message_of_a_task_is_a_json_object_of_its_arguments(app: miniq.App) -> None:
    @app.task(queue="emails", name="mail.welcome")
    def welcome(to: str, *names: str, at: datetime.date, **more: Any) -> None: ...

    id = welcome.send("a", "b", "c", at=datetime.date(2026, 1, 2), x=1).id
    message = app.queue("emails").get(id)
    assert message.body == {"to": "a", "names": ["b", "c"], "at": "2026-01-02", "x": 1}
    assert message.headers == {"task": "mail.welcome"}


def test_every_kind_of_parameter_arrives_as_it_was_given(app: miniq.App) -> None:
    seen: list[Any] = []

    @app.task
    def work(order: Order, /, line: Line, *dates: datetime.date, person: Person, model: Model, **more: Any) -> None:
        seen.append((order, line, dates, person, model, more))

    args = (Order(1, datetime.date(2026, 1, 2)), Line("x", 3), datetime.date(2026, 1, 3))
    work.send(*args, person={"name": "Ann"}, model=Model(email="a@b.c", age=3), other=[1])
    drain(app)
    assert seen == [(*args[:2], args[2:], {"name": "Ann"}, Model(email="a@b.c", age=3), {"other": [1]})]


def test_wrong_arguments_are_refused_where_they_are_sent(app: miniq.App) -> None:
    @app.task
    def work(to: str) -> None: ...

    with pytest.raises(TypeError, match="to"):
        work.send()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nope"):
        work.send("a", nope=1)  # type: ignore[call-arg]


def test_options_of_the_message_are_given_apart_from_the_arguments(app: miniq.App) -> None:
    @app.task(queue="emails")
    def work(delay: int) -> None: ...

    id = work.options(delay=60, priority=5, group="g", headers={"a": "b"}).send(delay=3).id
    message = app.queue("emails").get(id)
    assert (message.status, message.priority, message.group, message.body) == ("delayed", 5, "g", {"delay": 3})
    assert message.headers == {"a": "b", "task": "work"}
    with pytest.raises(miniq.InvalidRequest, match="no option 'dealy'"):
        work.options(dealy=3)  # type: ignore[call-arg]


def test_many_tasks_are_sent_in_one_call(app: miniq.App) -> None:
    seen: list[int] = []

    @app.task(queue="many")
    def work(n: int) -> None:
        seen.append(n)

    app.queue("many").send_many([work.draft(n) for n in range(50)])
    assert drain(app) == 50
    assert seen == list(range(50))


def test_text_that_is_json_is_read_by_annotations_that_text_does_not_fit(app: miniq.App) -> None:
    seen: list[Any] = []
    failures: list[miniq.Attempt] = []
    app.failed(failures.append)

    @app.handler("orders")
    def on_order(order: Order) -> None:
        seen.append(order)

    @app.handler("texts")
    def on_text(text: str) -> None:
        seen.append(text)

    for queue, body in [
        ("orders", '{"id": 7}'),
        ("texts", '{"id": 8}'),
        ("orders", '{"id": "x"}'),
        ("orders", "hello"),
    ]:
        app.queue(queue).send(body, content_type="text/plain")
        drain(app)
    assert [getattr(each, "id", each) for each in seen] == [7, '{"id": 8}']
    assert [str(failure.error) for failure in failures] == [
        "order: Expected `int`, got `str` - at `$.id`",
        "order: Expected `object`, got `str`",
    ]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"id": "x"}, "order: Expected `int`, got `str` - at `$.id`"),
        ({}, "order: Object missing required field `id`"),
        ([], "order: Expected `object`, got `array`"),
    ],
)
def test_a_body_that_does_not_fit_is_rejected_with_the_name_of_the_field(app: miniq.App, body: Any, error: str) -> None:
    @app.handler("orders")
    def on_order(order: Order) -> None:
        raise AssertionError("never called")

    failures: list[miniq.Attempt] = []
    app.failed(failures.append)
    app.queue("orders").send(body)
    assert drain(app) == 1
    assert str(failures[0].error) == error
    [letter] = app.queue("orders.dead").peek()
    assert letter.dead is not None
    assert letter.dead.reason == "rejected"


def test_a_pydantic_model_says_itself_what_does_not_fit(app: miniq.App) -> None:
    seen: list[Any] = []

    @app.handler("people")
    def on_person(person: Model) -> None:
        seen.append(person)

    failures: list[miniq.Attempt] = []
    app.failed(failures.append)
    app.queue("people").send({"email": "a@b.c", "age": 4})
    app.queue("people").send({"email": "a@b.c", "age": -4})
    drain(app)
    assert seen == [Model(email="a@b.c", age=4)]
    assert "age" in str(failures[0].error)
    assert "greater than or equal to 0" in str(failures[0].error)


def test_a_handler_may_take_the_message_and_settle_it(app: miniq.App) -> None:
    seen: list[Any] = []

    @app.handler("orders")
    def on_order(order: dict[str, int], message: miniq.Message) -> None:
        seen.append((order, message.receives, miniq.current_message() is message))
        message.release(delay=60)

    app.queue("orders").send({"a": 1})
    drain(app)
    assert seen == [({"a": 1}, 1, True)]
    assert app.queue("orders").info().counts.delayed == 1
    assert miniq.current_message() is None


def test_bytes_and_text_are_passed_as_they_were_sent(app: miniq.App) -> None:
    seen: list[Any] = []
    app.handler("raw")(lambda body: seen.append(body))

    @app.handler("bytes")
    def on_bytes(body: bytes) -> None:
        seen.append(body)

    @app.handler("text")
    def on_text(body: str) -> None:
        seen.append(body)

    app.queue("raw").send(b"\x00")
    app.queue("bytes").send(b"\x01")
    app.queue("text").send("x", content_type="text/plain")
    drain(app)
    assert sorted(seen, key=repr) == ["x", b"\x00", b"\x01"]


def test_a_batch_is_handled_by_one_call_and_what_does_not_fit_fails_by_itself(app: miniq.App) -> None:
    seen: list[Any] = []

    @app.handler("events", batch=4)
    def on_events(events: list[Line], messages: list[miniq.Message]) -> None:
        seen.append([(event.quantity, message.priority) for event, message in zip(events, messages, strict=True)])

    q = app.queue("events")
    q.send_many([{"sku": "x", "quantity": n} for n in range(5)])
    q.send({"sku": "x"})
    drain(app)
    assert seen == [[(n, 0) for n in range(4)], [(4, 0)]]
    assert (rest(app, "events"), rest(app, "events.dead")) == (0, 1)


async def test_async_tasks_and_sends_run_where_an_event_loop_runs() -> None:
    seen: list[Any] = []
    async with miniq.App("memory:") as app:

        @app.task(queue="emails")
        async def welcome(to: str) -> str:
            await asyncio.sleep(0)
            seen.append(to)
            return to

        await welcome.send_async("a")
        await welcome.options(priority=3).send_async("b")
        assert drain(app) == 2
        assert await welcome("c") == "c"
    assert seen == ["b", "a", "c"]


def test_hooks_are_called_around_each_attempt(app: miniq.App) -> None:
    seen: list[Any] = []

    @app.task
    def work(n: int) -> int:
        if n > 1:
            raise ValueError(f"no {n}")
        return n

    app.before(lambda attempt: seen.append(("before", attempt.task, attempt.message.body)))
    app.after(lambda attempt: seen.append(("after", attempt.result)))

    @app.failed
    def note(attempt: miniq.Attempt) -> None:
        seen.append(("failed", str(attempt.error)))
        raise RuntimeError("a hook that fails is logged")

    work.send(1)
    work.send(2)
    with pytest.raises(ValueError, match="no 2"):
        drain(app)
    assert seen == [
        ("before", "work", {"n": 1}),
        ("after", 1),
        ("before", "work", {"n": 2}),
        ("failed", "no 2"),
    ]


def test_an_exception_of_a_before_hook_fails_the_attempt(app: miniq.App) -> None:
    @app.task(queue="guarded")
    def work() -> None:
        raise AssertionError("never called")

    @app.before
    def refuse(attempt: miniq.Attempt) -> None:
        raise miniq.Reject("not today")

    work.send()
    assert drain(app) == 1
    assert rest(app, "guarded.dead") == 1


def test_a_message_for_no_task_is_rejected(app: miniq.App) -> None:
    app.task(queue="q", name="one")(lambda: None)
    app.task(queue="q", name="two")(lambda: None)
    failures: list[miniq.Attempt] = []
    app.failed(failures.append)
    app.queue("q").send({}, headers={"task": "three"})
    drain(app)
    assert str(failures[0].error) == "task: queue 'q' has no task 'three'; its tasks are one, two"
    assert rest(app, "q.dead") == 1


def test_a_queue_with_one_task_needs_no_header(app: miniq.App) -> None:
    seen: list[int] = []

    @app.task(queue="q")
    def work(n: int) -> None:
        seen.append(n)

    app.queue("q").send({"n": 5})
    drain(app)
    assert seen == [5]


def test_settings_of_a_queue_are_applied_and_must_agree(app: miniq.App) -> None:
    app.task(queue="q", name="one", max_receives=3)(lambda: None)
    with pytest.raises(miniq.InvalidRequest, match="max_receives: 5 for queue 'q'"):
        app.task(queue="q", name="two", max_receives=5)(lambda: None)
    drain(app)
    assert app.queue("q").info().settings.max_receives == 3


def test_what_cannot_be_declared_is_refused_by_its_name(app: miniq.App) -> None:
    def twice() -> None: ...

    app.task(twice)
    with pytest.raises(miniq.InvalidRequest, match="there is a task 'twice' already"):
        app.task(twice)
    with pytest.raises(miniq.InvalidRequest, match="timeout: 0"):
        app.task(timeout=0)(lambda: None)
    with pytest.raises(miniq.InvalidRequest, match="x: a task has no option 'max_receivs'; use one of queue, name, ti"):
        app.task(name="x", max_receivs=3)(lambda: None)  # type: ignore[call-arg]
    with pytest.raises(miniq.InvalidRequest, match="a handler has no option 'timout'; use one of batch, linger, timeo"):
        app.handler("x", timout=3)(lambda body: None)  # type: ignore[call-arg]
    app.handler("h")(lambda body: None)
    with pytest.raises(miniq.InvalidRequest, match="'h' has a handler already"):
        app.handler("h")(lambda body: None)
    app.handler("two")(lambda a, b: None)
    with pytest.raises(miniq.InvalidRequest, match="a, b: a handler takes one body"):
        drain(app)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_receives": 0}, "mail: max_receives: 0 is not a whole number of at least 1"),
        ({"retry": {"dealy": 1}}, "mail: retry: no field 'dealy'; use delay, factor, max, jitter"),
        ({"retry": 5}, "mail: retry: 5; use a dict with delay, factor, max, jitter"),
    ],
)
def test_a_wrong_setting_is_refused_where_it_is_declared(app: miniq.App, settings: Any, says: str) -> None:
    def mail(body: Any = None) -> None: ...

    with pytest.raises(miniq.InvalidRequest, match=says):
        app.task(queue="q", **settings)(mail)
    with pytest.raises(miniq.InvalidRequest, match=says):
        app.handler("q", **settings)(mail)
    assert (app.tasks, app.handlers, app.queues) == ({}, {}, [])
    app.task(queue="q", max_receives=None, retry={"delay": 1})(mail)


def test_a_handler_without_a_queue_is_refused_at_once(app: miniq.App) -> None:
    def on_order(order: int) -> None: ...

    with pytest.raises(miniq.InvalidRequest, match=r"on_order: .*@app\.handler\(\"orders\"\)"):
        app.handler(on_order)  # type: ignore[arg-type]


def test_a_task_that_sends_itself_for_ever_ends_the_drain(app: miniq.App) -> None:
    @app.task
    def work() -> None:
        work.send()

    work.send()
    with pytest.raises(RuntimeError, match="does a task send itself"):
        drain(app, max_jobs=20)


def test_the_fixture_gives_an_app_in_memory(miniq_app: miniq.App) -> None:
    seen: list[int] = []

    @miniq_app.task
    def work(n: int) -> None:
        seen.append(n)

    work.send(4)
    assert drain(miniq_app) == 1
    assert seen == [4]


def test_the_plugin_of_pytest_does_not_import_the_package() -> None:
    code = "import sys, pytest_miniq; sys.exit('miniq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_package_does_not_import_apps() -> None:
    code = "import sys, miniq; sys.exit('miniq.worker.app' in sys.modules or 'miniq.worker.shift' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


TYPED = """
import miniq

app = miniq.App("memory:")

@app.task(queue="emails", timeout=30, max_receives=8)
def welcome(to: str, name: str = "") -> int:
    return 1

@app.task
async def plain(n: int) -> str:
    return ""

welcome.send(to="ann@example.com")
welcome.send(to=5)
welcome.options(delay=60).send("a", nome="b")
plain.send("x")
n: int = welcome("a")
"""


def test_mypy_sees_the_parameters_of_a_task_through_send(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--cache-dir",
            str(tmp_path / "cache"),
            "typed.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line.partition("error: ")[2] for line in checked.stdout.splitlines() if "error:" in line]
    assert errors == [
        'Argument "to" to "send" of "Task" has incompatible type "int"; expected "str"  [arg-type]',
        'Unexpected keyword argument "nome" for "send" of "Sender"  [call-arg]',
        'Argument 1 to "send" of "Task" has incompatible type "str"; expected "int"  [arg-type]',
    ], checked.stdout + checked.stderr


def test_pyright_sees_the_parameters_of_a_task_through_send(tmp_path: Path) -> None:
    program, pyright = node("pyright")
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [program, str(pyright / "index.js"), "--pythonpath", sys.executable, "--outputjson", "typed.py"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [
        (problem["range"]["start"]["line"], problem["rule"])
        for problem in json.loads(checked.stdout)["generalDiagnostics"]
    ]
    lines = TYPED.splitlines()
    assert [(lines[line], rule) for line, rule in errors] == [
        ("welcome.send(to=5)", "reportArgumentType"),
        ('welcome.options(delay=60).send("a", nome="b")', "reportCallIssue"),
        ('plain.send("x")', "reportArgumentType"),
    ], checked.stdout + checked.stderr


def test_a_cron_decorator_without_an_expression_is_refused(app: miniq.App) -> None:
    with pytest.raises(miniq.InvalidRequest, match=r"cron: .* is not a cron expression; write @app.cron"):
        app.cron(lambda: None)  # type: ignore[arg-type]


def test_coroutines_have_messages_to_await_also_in_a_drain(app: miniq.App) -> None:
    @app.task(queue="tasks")
    async def task(n: int) -> None:
        await miniq.current_message().fail("by hand", delay=60)

    @app.handler("orders")
    async def on_order(order: dict[str, int], message: miniq.AsyncMessage) -> None:
        await message.fail("by hand", delay=60)

    @app.handler("blocking")
    async def on_blocking(order: int, message: miniq.Message) -> None:
        message.fail("by hand", delay=60)

    task.send(1)
    app.queue("orders").send({})
    app.queue("blocking").send(1)
    assert drain(app) == 3
    for queue in ("tasks", "orders", "blocking"):
        [message] = app.queue(queue).peek()
        assert (message.error, message.status) == ("by hand", "delayed")


def test_a_body_with_very_much_that_does_not_fit_is_rejected_with_the_beginning_of_why(app: miniq.App) -> None:
    @app.handler("numbers")
    def on_numbers(numbers: Numbers) -> None: ...

    app.queue("numbers").send({"values": ["é" * 50] * 200})
    drain(app)
    [letter] = app.queue("numbers.dead").peek()
    assert letter.dead is not None
    assert letter.dead.error is not None
    assert letter.dead.reason == "rejected"
    assert letter.dead.error.startswith("numbers: 200 validation errors for Numbers")
    assert 4000 < len(letter.dead.error.encode()) <= 4096
