"""The report: tables out of the archived history (`tables.py`), and a page with plots (`page.py`, `charts.py`)."""
