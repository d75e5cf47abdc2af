"""Amazon SQS on the HTTP port: a translator from its actions, names and errors to the calls of the broker.

`wire.py` reads a request by one of the two protocols (`protocols.py`), finds its action in the table (`actions.py`) and
checks the caller's right. The actions are functions in `sending.py`, `receiving.py`, `queues.py` and `move_tasks.py`;
their requests and replies are in `shapes.py`. No queue rule is decided here.
"""
