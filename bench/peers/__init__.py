"""MiniQ and its peers on one machine, in one run, at the same durability: `python -m bench.peers`.

`base.py` says what a peer is, one module per peer how it is started and spoken to, `shapes.py` what is measured.
"""
