"""Amazon SQS: its actions are functions in `sending.py`, `receiving.py`, `queues.py` and `move_tasks.py`; their
requests and replies are in `shapes.py`."""
