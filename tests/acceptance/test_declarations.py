"""What `miniq.App` and `miniq worker` refuse of tasks and handlers, and that errors name the one they belong to."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import miniq
from miniq.testing import drain
from tests.acceptance.shell import Shell
from tests.serving import Served


class Handle:
    """What no JSON can give."""


@dataclasses.dataclass
class Holder:
    handle: Handle
    inner: Holder | None = None


@dataclasses.dataclass
class Lenient:
    """The same, if it is left out."""

    number: int
    handle: Handle | None = None
    inner: Lenient | None = None


@pytest.fixture
def app() -> Iterator[miniq.App]:
    with miniq.App("memory:") as app:
        yield app


def generator(body: Any) -> Iterator[int]:
    yield body


async def async_generator(body: Any) -> AsyncIterator[int]:
    yield body


class Generating:
    def __call__(self, body: Any) -> Iterator[int]:
        yield body


@pytest.mark.parametrize("function", [generator, async_generator, Generating()])
def test_a_generator_function_is_refused_because_calling_it_runs_nothing(
    app: miniq.App, function: Callable[..., Any]
) -> None:
    declarations: list[Callable[[Any], Any]] = [
        app.task, app.task(queue="q"), app.handler("q"), app.cron("0 3 * * *"), app.queue("q").consume
    ]  # fmt: skip
    for declare in declarations:
        with pytest.raises(miniq.InvalidRequest, match="is a generator function: calling it runs nothing; use a func"):
            declare(function)
    assert (app.tasks, app.handlers, app.queues) == ({}, {}, [])


def test_a_queue_in_place_of_a_function_is_told_how_it_is_written(app: miniq.App) -> None:
    with pytest.raises(miniq.InvalidRequest) as raised:
        app.task("emails")  # type: ignore[call-overload]
    assert raised.value.text == "task: 'emails' is not a function; use @app.task(queue=\"emails\")"


def test_wrong_arguments_name_the_task_and_have_no_frames_of_the_library(app: miniq.App) -> None:
    @app.task(name="sums.add")
    def add(n: int) -> None: ...

    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: add.send(), "task 'sums.add': missing a required argument: 'n'"),  # type: ignore[call-arg]
        (
            lambda: app.schedule(add, every=5, kwargs={"n": 1, "reg": 1}),
            "task 'sums.add': there is no parameter 'reg', only: n",
        ),
        (lambda: app.cron("0 3 * * *")(add), "task 'sums.add': missing a required argument: 'n'"),
    ]
    for call, says in wrong:
        with pytest.raises(TypeError) as raised:
            call()
        assert says in str(raised.value)
        assert "inspect.py" not in "".join(traceback.format_exception(raised.value))


def test_errors_of_a_declaration_name_the_task_or_handler(app: miniq.App) -> None:
    def work() -> None: ...

    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: app.task(queue="a 1")(work), "work: queue: 'a 1' is not a queue name; use 1 to 128 of"),
        (lambda: app.handler("a 1"), "handler of 'a 1': queue: 'a 1' is not a queue name; use 1 to 128 of"),
        (lambda: app.task(timeout=0)(work), "work: timeout: 0 is not a number of seconds"),
        (lambda: app.handler("q", batch=0), "handler of 'q': batch: 0 is not a whole number"),
        (lambda: app.cron("0 3 * *")(work), "work: cron: '0 3 * *' has 4 fields"),
        (lambda: app.cron("0 3 * * *", timezone="Mars")(work), "work: timezone: 'Mars' is not a time zone"),
    ]
    for declare, says in wrong:
        with pytest.raises(miniq.InvalidRequest) as raised:
            declare()
        assert raised.value.text.startswith(says)
    assert (app.tasks, app.queues) == ({}, [])
    app.task(queue="q", name="one", rate=5)(work)
    with pytest.raises(miniq.InvalidRequest, match=r"^two: rate: 6 for queue 'q', which one sets to 5"):
        app.task(queue="q", name="two", rate=6)(work)
    with pytest.raises(miniq.InvalidRequest, match=r"^one: .* no option 'prio'; use one of .*priority, "):
        app.tasks["one"].options(prio=3)  # type: ignore[call-arg]


def test_an_annotation_that_json_cannot_give_is_refused_before_the_work_begins(app: miniq.App) -> None:
    def plain(handle: Handle) -> None: ...
    def several(handles: list[Handle]) -> None: ...
    def within(holder: Holder) -> None: ...

    for function in (plain, several, within):
        for declare in (app.task, app.handler("q")):
            declare(function)
            with pytest.raises(miniq.InvalidRequest, match=rf"^{function.__name__}: \w+: values of type Handle cannot"):
                drain(app)
            app.tasks.clear()
            app.handlers.clear()


def test_what_json_may_leave_out_can_have_any_type(app: miniq.App) -> None:
    seen: list[Any] = []

    @app.task(queue="tasks")
    def work(lenient: Lenient, thing: object, handle: Handle | None = None) -> None:
        seen.append((lenient, thing, handle))

    app.queue("tasks").send({"lenient": {"number": 1}, "thing": [2]})
    drain(app)
    assert seen == [(Lenient(1), [2], None)]


def test_a_message_without_the_name_of_a_task_says_so(app: miniq.App) -> None:
    for name in ("one", "two"):
        app.task(queue="q", name=name)(lambda: None)
    app.queue("q").send({})
    drain(app, raise_errors=False)
    [letter] = app.queue("q.dead").peek()
    assert letter.dead is not None
    assert letter.dead.error == (
        "task: the message has no header `task`, and queue 'q' has several tasks; its tasks are one, two"
    )


@pytest.mark.parametrize(
    ("task", "code", "says"),
    [
        ('@app.task(queue="limited", rate=-1)\ndef work() -> None: ...', 2, "work: rate: -1; use messages per second"),
        ('@app.handler("kept", results=-5)\ndef work(body) -> None: ...', 2, "work: results: -5 s is out of range"),
        ("class Foo: ...\n@app.task\ndef work(foo: Foo) -> None: ...", 2, "work: foo: values of type Foo cannot be"),
        ('@app.task("emails")\ndef work() -> None: ...', 1, 'use @app.task(queue="emails")'),
    ],
)
def test_a_worker_names_the_declaration_that_is_wrong_and_does_not_start(
    server: Served, tmp_path: Path, task: str, code: int, says: str
) -> None:
    (tmp_path / "shop.py").write_text(f"import miniq\n\napp = miniq.App()\n\n\n{task}\n")
    ended = Shell(server.url, tmp_path)("worker", "shop:app", code=code)
    assert says in ended.err
    assert "working on" not in ended.err
    assert "inspect.py" not in ended.err
