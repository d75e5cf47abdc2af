"""How fast MiniQ is, measured against what the disk itself can do. See `README.md` beside this file."""
