"""The built site at localhost, and the system's Chromium: its path is in CHROMIUM."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build/site"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Where the site is served; it has been built by ``python -m website``."""
    assert (SITE / "index.html").exists(), "Build the site first: python -m website"
    server = http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM")
    assert path, "CHROMIUM has to hold the path of a Chromium: CHROMIUM=/usr/bin/chromium python -m pytest site_tests"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()
