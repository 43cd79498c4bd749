"""Build the site: ``python -m website``. Needs ``pip install 'jaxrl-stack[docs]'``.

Pages are assembled below ``build/pages`` and built to ``build/site``; then every link, anchor and file is looked for.
The last line says whether all is well; the exit status is 1 if it is not.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import re
import subprocess
import sys
import time
from pathlib import Path

from website import assemble, check, search
from website.links import ROOT

SITE = ROOT / "build/site"


def navigation() -> list[str]:
    """The pages that mkdocs.yml lists, in its order."""
    text = (ROOT / "mkdocs.yml").read_text()
    return re.findall(r"([\w/]+\.md)$", text[text.index("\nnav:") :], re.MULTILINE)


def write_texts(texts: dict[str, str], site: Path) -> None:
    """``llms.txt``, a list of the pages with their first sentences, and ``llms-full.txt``, all of them as one file."""
    ordered = [place for place in navigation() if place in texts]
    lines = [
        "# jaxrl_stack",
        "",
        "> RLlib's new API stack on JAX: the same calls, compiled from environment to optimizer.",
        "",
    ]
    for place in ordered:
        title, _, body = texts[place].partition("\n")
        first = re.split(r"(?<=[.:])\s", " ".join(body.strip().split("\n\n")[0].split()))[0]
        first = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", first)
        lines.append(f"- [{title.removeprefix('# ')}]({place.removesuffix('index.md').removesuffix('.md')}): {first}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
    (site / "llms-full.txt").write_text(
        "\n\n".join(f"<!-- {place} -->\n{texts[place].strip()}" for place in ordered) + "\n"
    )


def build(generator: str = "zensical") -> list[str]:
    """Build everything; what is wrong with it."""
    start = time.monotonic()
    texts = assemble.assemble()
    assembled = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", generator, "build", "--strict", "--clean"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [f"not in the navigation of mkdocs.yml: {place}" for place in sorted(texts.keys() - set(navigation()))]
    found += [f"in the navigation of mkdocs.yml, and not there: {p}" for p in navigation() if p not in texts]
    if run.returncode:
        # Zensical's strict mode ends in a traceback of its own, which says nothing about the pages.
        said = (run.stdout + run.stderr).split("Traceback (most recent call last)")[0].strip()
        found += [f"{generator} build --strict failed:\n{said}"]
    if (SITE / "index.html").exists():
        write_texts(texts, SITE)
        found += search.install(SITE) if generator == "zensical" else []
        found += check.problems(SITE)
    num_pages = len(list(SITE.rglob("*.html")))
    seconds = time.monotonic() - start
    print(f"{num_pages} pages in {seconds:.0f} s, {assembled - start:.0f} s of it to assemble them")
    return found


def serve(port: int) -> None:
    """Show the built site at localhost until interrupted."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    print(f"http://localhost:{port}/")
    http.server.ThreadingHTTPServer(("localhost", port), handler).serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m website", description="Build the documentation site.")
    parser.add_argument("--generator", choices=("zensical", "mkdocs"), default="zensical")
    parser.add_argument("--serve", type=int, metavar="PORT", help="show it at localhost, once it is built")
    arguments = parser.parse_args()
    found = build(arguments.generator)
    for problem in found:
        print(f"  {problem}")
    print(f"site: {len(found)} problems" if found else f"site: no problems, {SITE.relative_to(ROOT)}/index.html")
    if arguments.serve:
        serve(arguments.serve)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
