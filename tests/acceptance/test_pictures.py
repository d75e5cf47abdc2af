"""The pictures of the console in the documentation. `make pictures` keeps them; otherwise they are only taken."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import expect

from tests.acceptance.browser import Visit, browsing
from tests.acceptance.staged import staged


def test_the_pictures_of_the_documentation_can_be_taken(tmp_path: Path) -> None:
    folder = Path(os.environ.get("MINIQ_PICTURES", tmp_path))
    with staged() as url, browsing() as browser:
        for name, size, scheme, path in (
            ("console", "desk", "light", "/"),
            ("console-queue", "desk", "dark", "/q/emails"),
            ("console-dead", "desk", "light", "/dead/webhooks.dead"),
            ("console-phone", "phone", "light", "/"),
        ):
            visit = Visit(browser, url, size, color_scheme=scheme, locale="en-GB")
            page = visit.go(path)
            expect(page.locator("tbody tr").first).to_be_visible()
            if path == "/":
                expect(page.locator(".spark path[d]:not([d=''])").nth(6)).to_be_attached()
            expect(page.locator("#live")).to_have_text("live")
            page.wait_for_timeout(2500)  # a picture with rates in it; nothing is asserted
            page.screenshot(path=folder / f"{name}.png")
            assert visit.bad == []
            visit.close()
        for name in ("console", "console-queue", "console-dead", "console-phone"):
            assert 8_000 < (folder / f"{name}.png").stat().st_size < 200_000
