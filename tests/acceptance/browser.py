"""A real browser for tests: Chromium through Playwright, at the size of a desk and of a phone."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE = 30_000
"""Milliseconds that a page may take to show something, on a machine that is busy with other things."""
expect.set_options(timeout=PATIENCE)
SIZES = {"desk": (1280, 860), "phone": (390, 844)}
"""What a page does is the same at both; test_console_narrow.py and test_console_trouble.py look at all on a phone."""
both_sizes = pytest.mark.parametrize("size", list(SIZES))
"""For a test of a page whose table, dialogs or menu are different on a phone; others run on a desk."""
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Chromium asks for nothing that the tests did not ask for."""


def chromium() -> str:
    """Where Chromium is; skip without it, fail where nothing may be absent."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    if os.environ.get("CI") == "true":
        pytest.fail("there is no chromium; `make browser` installs it")
    pytest.skip("there is no chromium: `make browser` installs it, or your system's package manager")


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    path = chromium()
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*root, *QUIET])
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One tab on a broker's console, which must not say anything bad while it is used."""

    def __init__(self, browser: Browser, url: str, size: str, **options: Any) -> None:
        width, height = SIZES[size]
        self.url = url
        self.size = size
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, has_touch=size == "phone", **options
        )
        self.context.set_default_timeout(PATIENCE)
        self.page: Page = self.context.new_page()
        self.bad: list[str] = []
        self.page.on("pageerror", lambda error: self.bad.append(f"error: {error}"))
        self.page.on("console", lambda said: self.bad.append(said.text) if said.type == "error" else None)

    def go(self, path: str) -> Page:
        """Open a page of the console."""
        self.page.goto(f"{self.url}/console#{path}")
        return self.page

    def close(self) -> None:
        self.context.close()

    def button(self, name: str) -> None:
        """Press a button: of the dialog that is open, else of the page."""
        dialog = self.page.locator("dialog[open]")
        where = dialog if dialog.count() else self.page.locator("main")
        where.get_by_role("button", name=name, exact=True).click()

    def toast(self, text: str) -> None:
        """Wait until the page says something."""
        self.page.locator(".toast", has_text=text).first.wait_for()
