"""Benchmarks of MiniQ, relative to the speed of the disk itself. See `README.md` beside this file."""
