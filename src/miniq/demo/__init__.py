"""`make demo`: everything at once, for real, in two minutes. `__main__.py` tells the story, `crew.py` has the producer
and the workers, `promises.py` compares what they were told with what is promised."""
