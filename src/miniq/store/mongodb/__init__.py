"""The MongoDB store: one document per message, for any number of brokers on one replica set.

`store.py` is the contract; its parts are in `messages.py`, `claims.py`, `stages.py` and `history.py`. `documents.py` is
the legend of collections and fields, `queries.py` has every query with its index, `connection.py` the transactions and
errors. `changes.py` makes changes of queues, `counters.py` counts, `groups.py` chooses heads, `uploads.py` packs what
is staged, `signals.py` tells other brokers of arrivals, `copying.py` dumps and loads, `upkeep.py` clears away.
"""

from miniq.store.mongodb.store import MongoStore

__all__ = ["MongoStore"]
