"""Amazon SQS and SNS on the HTTP port: a translator from their actions, names and errors to the calls of the broker.

`wire.py` reads a request by its protocol (`protocols.py`), finds its action in the table of its service (`actions.py`)
and checks the caller's right. The actions are functions in `sqs` and `sns`. No rule of queues or topics is decided
here.
"""
