"""The oracle: the store contract in the simplest correct way, without regard to speed. Tests compare every store with
it."""

from tests.oracle.store import Oracle

__all__ = ["Oracle"]
