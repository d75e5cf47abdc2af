"""The parts of the HTTP transport: `target.py` (URL and options), `requests.py` and `answers.py` (calls to bytes and
back, no I/O), and `streams.py`, which moves the bytes. `_async/http.py` puts them together."""
