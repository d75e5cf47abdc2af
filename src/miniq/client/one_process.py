"""The base of objects that belong to one process, because they hold connections or a broker."""

from __future__ import annotations

from typing import NoReturn


class OneProcess:
    """Refuses to be pickled, which is how `multiprocessing` passes objects to another process."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be passed to another process; pass its URL, and connect there")
