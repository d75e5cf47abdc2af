"""The report: tables from the archived history (`tables.py`), and an HTML page with charts (`page.py`, `charts.py`)."""
