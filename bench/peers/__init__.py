"""MiniQ and its peers on one machine, in one run, at the same durability: `python -m bench.peers`.

`base.py` says what a peer is, `field.py` who takes part, one module per peer how it is started and spoken to,
`shapes.py` what is measured, and `backlog.py` how it goes while millions of messages wait.
"""
