"""The shortest correct store, and the oracle of the tests. Nothing survives the process."""

from miniq.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
