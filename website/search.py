"""The site's search: how much pages count, and the worker that ranks their sections.

Zensical's own worker wants every word of a query in one section, and knows neither stop words nor weights.
`search_worker.js` takes its place, with the same messages; mkdocs-material reads the weights as ``search.boost``.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

WORKER = Path(__file__).with_name("search_worker.js")
WEIGHTS = {
    "questions": 1.7,
    "start": 1.3, "first_agent": 1.3, "your_environment": 1.3, "your_parts": 1.3, "images": 1.3, "memory": 1.3,
    "multi_agent": 1.3, "offline": 1.3, "populations": 1.2, "scaling": 1.2, "serving": 1.3, "troubleshooting": 1.3,
    "checkpoints": 1.2, "curves": 1.1, "progress": 1.2, "videos": 1.2, "networks": 1.1, "environments": 1.1,
    "coming_from": 0.8, "command_line": 0.8, "glossary": 0.8, "measured": 0.6, "settings": 0.5, "settings/all": 0.9,
    "reference": 0.35, "parity": 0.4, "changelog": 0.05, "contributing": 0.2, "map": 0.2, "rooms": 0.2,
    "training_steps": 0.7, "asked_for": 0.2,
}  # fmt: skip
"""Beginning of a page's address → how much its sections count; others count 1."""


def weight(address: str) -> float:
    """How much a page or a section counts, by its address on the site."""
    found = [start for start in WEIGHTS if address.startswith(start)]
    return WEIGHTS[max(found, key=len)] if found else 1.0


def with_boost(place: str, text: str) -> str:
    """A page with its weight as mkdocs-material reads it."""
    boost = weight(place)
    return text if boost == 1.0 or text.startswith("---\n") else f"---\nsearch:\n  boost: {boost}\n---\n\n{text}"


def install(site: Path) -> list[str]:
    """Put weights and worker into a site that Zensical has built.

    Returns:
        What is wrong: an empty list, or that this release of Zensical has another search.
    """
    index, workers = site / "search.json", sorted(site.glob("assets/javascripts/workers/search.*.js"))
    if not index.exists() or len(workers) != 1:
        return ["the search of this generator is another one: website/search.py puts weights into Zensical 0.0.73's"]
    found = json.loads(index.read_text())
    for item in found["items"]:
        item["weight"] = weight(item["location"])
    index.write_text(json.dumps(found, ensure_ascii=False))
    code = WORKER.read_text()
    old, new = workers[0].name, f"search.{hashlib.sha256(code.encode()).hexdigest()[:8]}.js"
    workers[0].unlink()
    workers[0].with_name(new).write_text(code)
    pages = [page for page in site.rglob("*.html") if old in page.read_text()]
    for page in pages:
        page.write_text(page.read_text().replace(old, new))
    messages = re.search(r"new Worker\(", "".join(path.read_text() for path in site.glob("assets/javascripts/*.js")))
    return [] if pages and messages else [f"no page starts {old}: website/search.py puts another worker in its place"]
