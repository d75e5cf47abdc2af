"""Tasks of MiniQ, Celery, Dramatiq, RQ and Huey on one machine, in one run: `python -m bench.workers`.

`peers.py` says how each is started, `tasks/` has the same two tasks for each, and `marks.py` how a task says that it is
done: by a timestamp in a file that all processes share.
"""
