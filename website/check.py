"""What is wrong with built pages: links and anchors that lead nowhere, and what they would load from elsewhere."""

from __future__ import annotations

import posixpath
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page has and what it links to."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        is_loaded = tag == "link" and values.get("rel") not in ("canonical", "prev", "next")
        if is_loaded and "href" in values:
            self.loads.append(values["href"])
        if tag in ("script", "img", "source", "video", "iframe") and "src" in values:
            self.loads.append(values["src"])


def problems(site: Path) -> list[str]:
    """A sentence for each dead link, missing anchor and file from another server."""
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    pages = {name: Page((site / name).read_text()) for name in sorted(files) if name.endswith(".html")}
    found = []
    for name, page in pages.items():
        for target in page.loads:
            if urlsplit(target).netloc:
                found.append(f"{name} loads {target} from another server")
        if name == "404.html":
            continue
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
            path = name if not parts.path else path
            if path not in files:
                path = "index.html" if path == "." else posixpath.join(path, "index.html")
            if path not in files:
                found.append(f"{name} links to {target}, which is not there")
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
                found.append(f"{name} links to {target}: the page has no such anchor")
    return found
