"""The MongoDB store: messages in blocks of one document, for any number of brokers on one replica set.

`store.py` is the contract; its parts are in `messages.py`, `claims.py`, `stages.py` and `history.py`. `documents.py` is
the legend of collections and fields, `queries.py` has every query with its index, `connection.py` the transactions and
errors. `blocks.py` is a block in memory, `writes.py` writes it on condition; `taking.py` and `changing.py` use both,
and `turns.py` makes calls together. `changes.py` runs transactions, `groups.py` chooses heads, `counting.py` counts,
`uploads.py` packs what is staged, `signals.py` tells other brokers of arrivals, `copying.py` dumps and loads,
`upkeep.py` clears away, `upgrade.py` converts what earlier versions wrote.
"""

from miniq.store.mongodb.store import MongoStore

__all__ = ["MongoStore"]
