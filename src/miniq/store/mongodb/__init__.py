"""The MongoDB store: one document per message, for any number of brokers on one replica set.

`store.py` is the contract, `documents.py` the legend of collections and fields, `queries.py` every query with its
index, `link.py` the connection with its transactions and errors. `changes.py` makes changes of queues, `counters.py`
counts, `groups.py` chooses heads, `claims.py` and `stages.py` keep what they are called, `history.py` keeps events,
`signals.py` tells other brokers of arrivals, `copying.py` dumps and loads, `upkeep.py` clears away.
"""

from miniq.store.mongodb.store import MongoStore

__all__ = ["MongoStore"]
