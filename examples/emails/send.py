"""Sends a welcome to each address of the command line."""

from __future__ import annotations

import sys

from shop import app, welcome

if not sys.argv[1:]:
    sys.exit("usage: python send.py ADDRESS...")
for address in sys.argv[1:]:
    print(welcome.send(to=address).id)
app.close()
