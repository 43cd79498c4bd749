"""Names that were documented at an older commit and are not here any more.

    python tests/documented_names.py COMMIT

prints them, by how they were documented, and fails if there are any:

* paths: what ``from jaxrl_stack... import ...`` and dotted paths in pages and docstrings lead to can be imported;
* words: what stood in code marks or code blocks of README.md and docs/ and was a name in the package (of a class, a
  parameter, a setting, a metric) is such a name, or is documented;
* definitions: public classes, functions and methods with a docstring are there. If another module has them, or a class
  that derived from theirs and has taken them over, that is told.
"""

from __future__ import annotations

import ast
import functools
import importlib
import io
import pathlib
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "jaxrl_stack"

Sources = Mapping[str, str]
"""Path in the repository → text."""


def is_page(path: str) -> bool:
    return path.endswith(".md") and path != "CHANGELOG.md" and not path.startswith("tests/")


def is_code(path: str) -> bool:
    return path.endswith(".py") and path.startswith(f"{PACKAGE}/")


def sources_at(commit: str) -> Sources:
    """Pages and modules at a commit."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        wanted = [each for each in files if each.isfile() and (is_page(each.name) or is_code(each.name))]
        return {each.name: files.extractfile(each).read().decode() for each in wanted}


def sources_here() -> Sources:
    """Pages and modules of the working tree."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    wanted = [name for name in names if (is_page(name) or is_code(name)) and (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text() for name in wanted}


# -------------------------------------------------------------------------------------------- what sources document


def module_of(path: str) -> str:
    """``jaxrl_stack/a/__init__.py`` → ``jaxrl_stack.a``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def code_in(page: str) -> str:
    """What stands in code blocks and code marks of a page."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", page, re.DOTALL))


def docstrings(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def paths_in(text: str) -> set[str]:
    """Dotted paths into the package that a text names or imports from."""
    names = r"\(([^)]*)\)|([\w, ]+?)(?= *(?:#.*)?$)"
    found = set(re.findall(rf"\b({PACKAGE}(?:\.\w+)+)", text))
    for module, inside, plain in re.findall(rf"from ({PACKAGE}[\w.]*) import (?:{names})", text, re.MULTILINE):
        names_of = (part.split("#")[0].split(" as ")[0].strip() for part in re.split(r"[,\n]", inside or plain))
        found |= {f"{module}.{name}" for name in names_of if name.isidentifier()}
    return {path for path in found if not any(part.startswith("_") for part in path.split("."))}


def words_in(text: str) -> set[str]:
    """Identifiers that do not look private."""
    return {word for word in re.findall(r"\b[A-Za-z]\w{2,}\b", text)}


def documented_words(sources: Sources) -> set[str]:
    return set().union(*(words_in(code_in(text)) for path, text in sources.items() if is_page(path)))


def documented_paths(sources: Sources) -> set[str]:
    pages = (code_in(text) for path, text in sources.items() if is_page(path))
    texts = (text for path, module in sources.items() if is_code(path) for text in docstrings(module))
    return set().union(*map(paths_in, pages), *map(paths_in, texts))


def code_words(sources: Sources) -> set[str]:
    """Identifiers of all modules, in their texts as well: names of settings and metrics are texts."""
    words: set[str] = set()
    for path, text in sources.items():
        if is_code(path):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    words.add(node.name)
                elif isinstance(node, ast.Name | ast.Attribute | ast.arg | ast.keyword | ast.alias | ast.Constant):
                    named = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "value"))
                    words |= {
                        word for name in named if isinstance(name, str) and " " not in name for word in words_in(name)
                    }
    return words


def definitions(sources: Sources) -> dict[str, str]:
    """``module:name`` or ``module:Class.name`` → its name, of what is public and has a docstring."""
    found: dict[str, str] = {}

    def visit(body: list[ast.stmt], module: str, owner: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(
                "_"
            ):
                if ast.get_docstring(node):
                    found[f"{module}:{owner}{node.name}"] = f"{owner}{node.name}"
                if isinstance(node, ast.ClassDef):
                    visit(node.body, module, f"{owner}{node.name}.")

    for path, text in sources.items():
        if is_code(path) and not any(part.startswith("_") for part in module_of(path).split(".")):
            visit(ast.parse(text).body, module_of(path), "")
    return found


# ------------------------------------------------------------------------------------------------- what is here now


@functools.cache
def resolve(path: str) -> Any:
    """What a dotted path leads to; None if nothing."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            if not has(found, name):
                return None
            found = getattr(found, name, has)  # an attribute of instances
        return found
    return None


def has(owner: Any, name: str) -> bool:
    """Whether a module or class has this, or the class's instances do."""
    if hasattr(owner, name):
        return True
    bases = owner.__mro__ if isinstance(owner, type) else ()
    return any(name in vars(base).get("__annotations__", ()) for base in bases)


def compare(before: Sources, now: Sources) -> dict[str, list[str]]:
    """Kind → what of it was documented before and is not here now; "moved" ones are."""
    homes: dict[str, list[str]] = {}
    for place in definitions_of_any_kind(now):
        module, _, name = place.partition(":")
        homes.setdefault(name, []).append(module)
    heirs, gone, moved = heirs_of_bases(before), [], []
    for place, name in definitions(before).items():
        if resolve(place.replace(":", ".")) is not None:
            continue
        head, _, rest = name.partition(".")
        found = [module for module in homes.get(head, ()) if resolve(f"{module}.{name}") is not None]
        if head not in homes:  # A base that was joined with a class that derived from it.
            heir = next((own for own in heirs.get(head, ()) if own in homes), "")
            found = [
                f"{module}:{heir}" for module in homes.get(heir, ()) if resolve(f"{module}.{heir}.{rest}".strip("."))
            ]
        if found:
            moved += [] if rest else [f"{place} → {found[0]}"]
        else:
            gone.append(place)
    there = code_words(now) | documented_words(now)
    were_names = documented_words(before) & code_words(before)
    return {
        "paths": sorted(path for path in documented_paths(before) if resolve(path) is None),
        "words": sorted(were_names - there),
        "definitions": sorted(gone),
        "moved": sorted(moved),
    }


def heirs_of_bases(sources: Sources) -> dict[str, list[str]]:
    """Name of a class → names of the public classes that derive from it, with most heirs first."""
    classes: dict[str, list[str]] = {}
    for path, text in sources.items():
        if is_code(path):
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef):
                    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
                    classes[node.name] = [base.id for base in bases if isinstance(base, ast.Name)]
    heirs: dict[str, list[str]] = {}
    for name in classes:
        waiting, seen = list(classes[name]), set[str]()
        while waiting:
            base = waiting.pop()
            if base not in seen and base in classes:
                seen.add(base)
                waiting += classes[base]
        for base in seen if not name.startswith("_") else ():
            heirs.setdefault(base, []).append(name)
    return {base: sorted(own, key=lambda name: -len(heirs.get(name, ()))) for base, own in heirs.items()}


def definitions_of_any_kind(sources: Sources) -> Iterator[str]:
    """``module:name`` of all that is defined at the top of modules."""
    for path, text in sources.items():
        if is_code(path):
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{module_of(path)}:{node.name}"


def main(commit: str) -> int:
    before = sources_at(commit)
    found = compare(before, sources_here())
    counts = {
        "paths": len(documented_paths(before)),
        "words": len(documented_words(before) & code_words(before)),
        "definitions": len(definitions(before)),
    }
    for kind, names in found.items():
        print(f"{kind}: {len(names)}" + (f" of {counts[kind]} are not here" if kind in counts else ""))
        for name in names:
            print(f"  {name}")
    return int(any(found[kind] for kind in counts))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1]))
