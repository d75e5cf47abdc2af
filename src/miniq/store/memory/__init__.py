"""The simplest correct store, which tests compare the others with. Nothing survives the process."""

from miniq.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
