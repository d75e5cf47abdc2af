"""Amazon SNS: its actions are functions in `topics.py`, `subscriptions.py` and `publishing.py`; their requests and
replies are in `shapes.py`. A topic of SNS is a topic of the broker, a subscription one of its subscriptions."""
