"""`make demo`: the whole system, with real processes, in two minutes. `__main__.py` runs the scenario, `crew.py` is
the broker, producer and worker processes, `promises.py` checks their records against the broker's guarantees."""
