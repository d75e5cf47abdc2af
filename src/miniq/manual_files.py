"""Where the manual is: `python -m miniq.manual` builds it (the extra `docs`), `server/http/manual.py` serves it.

- the *sources* are the checkout that this package is in; a wheel that has no site has a copy of them;
- the *site* is in `miniq/manual`: `make docs` and `make dist` put it there. A broker that has the extra but no site
  builds it once, there if it may write there, else in the user's cache.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).parent / "manual"
SITE = FOLDER / "site"
PACKED = FOLDER / "source"
"""The copy of the sources in a wheel."""
START = "index.html"


def sources() -> Path | None:
    """The folder that has `docs/` and the pages beside it."""
    return next((folder for folder in (PACKED, FOLDER.parents[2]) if _has(folder, "docs/README.md")), None)


def cache() -> Path | None:
    """Where a broker builds the site if it may not write to its own package; None for a user without a home."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder, "miniq", f"manual-{metadata.version('miniq')}") if os.path.isabs(folder) else None


def built() -> Path | None:
    """The folder of the site, None if it was not built yet."""
    if _has(SITE, START):
        return SITE
    folder = cache()
    return folder if folder is not None and _has(folder, START) else None


def _has(folder: Path, name: str) -> bool:
    """Whether there is such a file that may be read."""
    return os.path.isfile(folder / name)
