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
    for folder in (PACKED, FOLDER.parents[2]):
        if (folder / "docs" / "README.md").is_file():
            return folder
    return None


def cache() -> Path:
    """Where a broker builds the site if it may not write to its own package."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "miniq" / f"manual-{metadata.version('miniq')}"


def built() -> Path | None:
    """The folder of the site, None if it was not built yet."""
    for folder in (SITE, cache()):
        if (folder / START).is_file():
            return folder
    return None
