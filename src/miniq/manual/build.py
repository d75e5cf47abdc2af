"""Builds the manual with MkDocs from `docs/`, the pages beside it, and references that are made from the code.

Pages are written for the repository, where they link to any file. In the site, a link to a page leads to that page, one
to a file that people copy (`ops/miniq.toml`, `compose.yaml`, an example) to a copy of it, and one to anything else is
text.
"""

from __future__ import annotations

import logging
import posixpath
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.commands import build as mkdocs
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import MkDocsException
from mkdocs.plugins import BasePlugin
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import miniq
from miniq.errors import install
from miniq.manual.references import references
from miniq.manual_files import FOLDER, sources

PAGES = {
    "README.md": "tour.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bench/README.md": "bench.md",
    "examples/README.md": "examples.md",
}
"""Pages outside `docs/`, and where they are in the site."""
COPIED = ("ops/*.*", "Dockerfile", "compose.yaml", "examples/*/*.py", "bench/results/*.*")
"""Files that the site has a copy of, in `files/`."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


class Manual(BasePlugin):  # type: ignore[type-arg,no-untyped-call]
    """What MkDocs is told about the pages that are not in `docs/`."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        copied = {path.relative_to(root).as_posix() for glob in COPIED for path in root.glob(glob)}
        self._places = PAGES | {path: f"files/{path}" for path in copied}
        """Where a file of the repository is in the site."""

    def on_config(self, config: MkDocsConfig) -> MkDocsConfig:
        decisions = sorted(path.name for path in (self._root / "docs" / "decisions").glob("0*.md"))
        config.nav = _filled(config.nav, {"decisions/*": [f"decisions/{name}" for name in decisions]})
        return config

    def on_files(self, files: Files, config: MkDocsConfig) -> Files:
        for path, place in self._places.items():
            if files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, abs_src_path=str(self._root / path)))
        own = {"img/icon.svg": FOLDER.parent / "console" / "icon.svg", "manual.css": FOLDER / "manual.css"}
        for place, source in own.items():
            files.append(File.generated(config, place, abs_src_path=str(source)))
        for place, text in references().items():
            files.append(File.generated(config, place, content=text))
        return files

    def on_post_page(self, output: str, page: Page, config: MkDocsConfig) -> str:
        """Name the theme's dialog for screen readers."""
        return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)

    def on_page_markdown(self, markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
        place = page.file.src_uri
        own = next((path for path, other in self._places.items() if other == place), f"docs/{place}")

        def linked(found: re.Match[str]) -> str:
            picture, text, target, anchor = found.groups()
            if not target or re.match(r"[a-z]+:", target):
                return found[0]
            path = posixpath.normpath(posixpath.join(posixpath.dirname(own), target))
            if path.startswith("docs/") and (self._root / path).is_dir():
                path += "/README.md"
            inside = path.removeprefix("docs/") if path.startswith("docs/") else self._places.get(path)
            if inside is None and (self._root / path).exists():
                return text
            if inside is None and not path.endswith(".md") and not picture:
                return text  # a file of the repository that the sources of a wheel do not have
            there = posixpath.relpath(inside or path, posixpath.dirname(place) or ".")
            return f"{picture}[{text}]({there}{anchor or ''})"

        parts, end = [], 0
        for fence in _FENCE.finditer(markdown):
            parts += [_LINK.sub(linked, markdown[end : fence.start()]), fence[0]]
            end = fence.end()
        return "".join([*parts, _LINK.sub(linked, markdown[end:])])


def _filled(nav: Any, groups: dict[str, list[str]]) -> Any:
    """A navigation in which each name of a group is replaced by its members."""
    if isinstance(nav, dict):
        return {title: _filled(inside, groups) for title, inside in nav.items()}
    if isinstance(nav, list):
        lists = [groups.get(item, [item]) if isinstance(item, str) else [_filled(item, groups)] for item in nav]
        return [item for items in lists for item in items]
    return nav


def build(folder: Path, *, strict: bool) -> int:
    """Build the site next to where it goes, then put it in place. The exit code of the command."""
    root = sources()
    if root is None:
        print(f"the sources of the manual are not installed: {install('docs')}", file=sys.stderr)
        return 1
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".manual-") as made:
        site = Path(made) / "site"
        try:
            config = load_config(
                str(FOLDER / "mkdocs.yml"),
                docs_dir=str(root / "docs"),
                site_dir=str(site),
                site_name=f"MiniQ {miniq.__version__}",
                strict=strict,
            )
            config.plugins["manual"] = Manual(root)
            mkdocs.build(config)
        except MkDocsException as error:
            print(error, file=sys.stderr)
            return 1
        for unused in ("assets/javascripts/lunr", "sitemap.xml", "sitemap.xml.gz"):  # other languages; for robots
            path = site / unused
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for path in site.rglob("*.map"):
            path.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        site.rename(folder)
    pages = sum(1 for _ in folder.rglob("*.html"))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{pages} pages, {size / 1e6:.1f} MB in {folder}")
    return 0
