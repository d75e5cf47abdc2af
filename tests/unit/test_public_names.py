"""What `import miniq` offers."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version

import pytest

import miniq
from miniq import errors


def test_all_names_what_the_package_offers_and_nothing_else() -> None:
    for name in miniq._LAZY:
        assert getattr(miniq, name).__module__.startswith("miniq.worker.")
    public = {name for name, value in vars(miniq).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert sorted(public | {"__version__"}) == sorted(miniq.__all__)
    assert len(set(miniq.__all__)) == len(miniq.__all__)


def test_the_version_is_that_of_the_package() -> None:
    assert miniq.__version__ == version("miniq")


@pytest.mark.parametrize("error", errors.BY_CODE.values(), ids=lambda error: error.__name__)
def test_every_error_can_be_caught_by_its_public_name(error: type[miniq.MiniQError]) -> None:
    assert getattr(miniq, error.__name__) is error


@pytest.mark.parametrize(
    ("sync", "aio"),
    [
        (miniq.Client, miniq.AsyncClient),
        (miniq.Queue, miniq.AsyncQueue),
        (miniq.Message, miniq.AsyncMessage),
        (miniq.Claims, miniq.AsyncClaims),
        (miniq.Staging, miniq.AsyncStaging),
        (miniq.Topic, miniq.AsyncTopic),
    ],
)
def test_the_async_surface_is_the_blocking_one_with_await(sync: type, aio: type) -> None:
    assert _surface(aio) == _surface(sync)


def _surface(kind: type) -> dict[str, str]:
    """The public names of a class with their signatures, without what makes it async."""
    return {
        name: re.sub("Async", "", str(inspect.signature(value))) if callable(value) else "property"
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    "kind",
    [miniq.AsyncClient, miniq.AsyncQueue, miniq.AsyncMessage, miniq.AsyncClaims, miniq.AsyncStaging, miniq.AsyncTopic],
)
def test_all_async_methods_that_ask_something_are_coroutines(kind: type) -> None:
    plain = {name for name, value in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
    plain -= {name for name, value in inspect.getmembers(kind, inspect.iscoroutinefunction)}
    assert plain <= {"queue", "topic", "claims", "stage"}
