"""Writes rllib_packages.json: the names that RLlib's packages offer in ``__all__``, read without importing them.

python tests/reference/make_rllib_packages.py path/to/site-packages/ray/rllib
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path


def offered(path: Path) -> list[str]:
    """The names in ``__all__`` of a file."""
    names: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            names += [
                own.value for own in ast.walk(node) if isinstance(own, ast.Constant) and isinstance(own.value, str)
            ]
    return sorted(set(names))


def main() -> None:
    """Reads all packages below the folder of RLlib."""
    root = Path(sys.argv[1])
    files = sorted(root.rglob("__init__.py"))
    names = {".".join(path.parent.relative_to(root).parts): offered(path) for path in files}
    out = Path(__file__).with_name("rllib_packages.json")
    kept = json.loads(out.read_text()) if out.exists() else {"absent": {}}
    facts = {"names": {package: own for package, own in names.items() if own}, "absent": kept["absent"]}
    out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
