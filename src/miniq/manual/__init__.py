"""The manual: a searchable site of everything in `docs/`, with references of the Python API and of the commands."""
