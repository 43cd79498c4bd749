"""The tables of docs/parity.md: RLlib's public surface against ours, made of facts about RLlib and of our own classes.

``python -m website.parity_tables`` prints them; the site shows them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from website.links import ROOT

FACTS = json.loads((ROOT / "tests" / "reference" / "rllib_api.json").read_text())
KNOWN = json.loads((ROOT / "tests" / "reference" / "absent.json").read_text())

GROUPS = {
    "Algorithm and configs": ("algorithm", "config", "algorithms", "config_extra"),
    "RLModules": ("rl_module", "rl_module_apis", "catalogs", "model_configs", "distributions"),
    "Learners": ("learner",),
    "Connectors": ("connector_base", "connectors"),
    "Episodes": ("episodes",),
    "Env runners and environments": ("env_runners", "envs"),
    "Metrics": ("metrics", "metrics_stats"),
    "Callbacks": ("callbacks",),
    "Checkpoints": ("checkpointable",),
    "Replay and offline": ("replay_buffers", "offline"),
    "Names and functions": ("schedules", "columns", "constants", "functions"),
}


@functools.cache
def resolve(path: str) -> Any:
    """The object that RLlib has at ``ray.rllib.<path>``, here; None if there is none."""
    path = KNOWN["renamed"].get(path, path).removeprefix("ray.")
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(f"jaxrl_stack.{module}"), name)
    except (ImportError, AttributeError):
        return None
    # A stand-in can be imported, and is not there.
    return None if hasattr(found, "comes_later") else found


@functools.cache
def instance_attributes(cls: type) -> frozenset[str]:
    """Names that the methods of a class and its bases assign on ``self``."""
    sources = [inspect.getsource(base) for base in cls.__mro__ if base.__module__.startswith("jaxrl_stack")]
    return frozenset(re.findall(r"\bself\.(\w+)(?:: [^=\n]+)? =", "\n".join(sources)))


def parameters_missing(function: Any, wanted: list[str]) -> Iterator[str]:
    """Parameters that RLlib's function has and ours does not take."""
    ours = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in ours.values()):
        return
    for parameter in wanted:
        name = parameter.split("=")[0]
        is_old = parameter.endswith("=DEPRECATED_VALUE")
        if not name.startswith(("*", "_")) and name not in ours and not is_old:
            yield f"({name}=)"


def members_missing(cls: Any, facts: dict[str, Any]) -> Iterator[str]:
    """Members that RLlib's class has and ours does not, as ``.name``, or ``.name(parameter=)``."""
    fields = facts.get("fields", ())
    if not fields:
        yield from parameters_missing(cls.__init__, facts.get("constructor", ()))
    for field in fields:
        name = field.split("=")[0]
        if name not in cls.__dataclass_fields__ and not hasattr(cls, name):
            yield f".{field.split('=')[0]}"
    gone = {name for name, fact in facts.get("deprecated_methods", {}).items() if fact["raises"]}
    methods = facts.get("methods", {})
    names = [*methods, *facts.get("deprecated_methods", ()), *facts.get("properties", ())]
    for name in dict.fromkeys([*names, *facts.get("class_attributes", ())]):
        if name in gone:
            continue
        if not hasattr(cls, name):
            if name not in instance_attributes(cls):
                yield f".{name}"
        elif name in methods and not name.startswith("__"):
            yield from (f".{name}{missing}" for missing in parameters_missing(getattr(cls, name), methods[name]))


def entries(category: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """``(path, facts)`` of every class of a category."""
    if category == "config":
        yield "algorithms.algorithm_config.AlgorithmConfig", FACTS["config"]
    elif category == "algorithms":
        for facts in FACTS["algorithms"].values():
            yield facts["config_class"], {}
            yield facts["algorithm_class"], {}
    elif category == "connectors":
        for pieces in FACTS["connectors"]["pieces"].values():
            for name, facts in pieces.items():
                yield f"{facts['exported_from']}.{name}", {"constructor": facts.get("constructor", ())}
    else:
        for name, facts in FACTS["classes"].get(category, {}).items():
            yield f"{facts['import_from']}.{name}", facts


def values(category: str) -> Iterator[tuple[str, Any]]:
    """``(path, repr of the value)`` of every constant of a category."""
    if category == "columns":
        for name, value in FACTS["columns"].items():
            yield f"core.columns.Columns.{name}", repr(value)
    elif category == "constants":
        for module, constants in FACTS["constants"].items():
            for name, value in constants.items():
                if not name.startswith("_"):
                    yield f"{module}.{name}", value


@functools.cache
def surface() -> dict[str, dict[str, list[str]]]:
    """``{group: {path of a class, function or constant: [what of it is absent]}}``; [""] if all of it is."""
    found: dict[str, dict[str, list[str]]] = {}
    for group, categories in GROUPS.items():
        rows = found.setdefault(group, {})
        for category in categories:
            for path, facts in entries(category):
                ours = resolve(path)
                rows[path] = [""] if ours is None else sorted(set(members_missing(ours, facts)))
            for path, value in values(category):
                owner, _, name = path.rpartition(".")
                ours = getattr(resolve(owner), name, None) if "Columns" in path else resolve(path)
                # Some of the facts are texts as they are, without quotes.
                rows[path] = [] if value in (repr(ours), ours) else [""]
            if category == "functions":
                for path, wanted in FACTS["functions"].items():
                    ours = resolve(path)
                    rows[path] = [""] if ours is None else sorted(parameters_missing(ours, wanted))
    return found


def absent() -> list[str]:
    """Every absent name; a class that is absent stands for its members."""
    return sorted(path + what for rows in surface().values() for path, missing in rows.items() for what in missing)


def settings_tables() -> str:
    """The settings of all sections, by what they do here."""
    from jaxrl_stack.algorithms.ppo import PPOConfig

    declarations = PPOConfig._declarations
    lines = [
        "| section | work | work with host environments | no effect (said once) | raise until they come |",
        "|---|---|---|---|---|",
    ]
    for section in declarations.section_docs:
        settings = declarations.in_section(section)
        columns: dict[str, list[str]] = {"works": [], "actors": [], "inert": [], "later": []}
        for setting in settings:
            kind = setting.kind if setting.kind in columns else setting.read_by
            columns[kind if kind in columns else "works"].append(f"`{setting.name}`")
        if settings:
            works, *others = columns.values()
            cells = ["all" if len(names) == len(settings) else ", ".join(names) for names in others]
            lines.append(f"| `{section}()` | {len(works)} of {len(settings)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def classes_table() -> str:
    """What is there, class by class."""
    lines = ["| group | complete | without a few members (below) | absent |", "|---|---|---|---|"]
    for group, rows in surface().items():
        whole = sum(not missing for missing in rows.values())
        gone = sum(missing == [""] for missing in rows.values())
        partly = [f"`{path.rpartition('.')[2]}`" for path, missing in rows.items() if missing and missing != [""]]
        lines.append(f"| {group} | {whole} of {len(rows)} | {', '.join(partly)} | {gone or ''} |")
    return "\n".join(lines)


def absent_table() -> str:
    """What is absent, and why; members after their class."""
    blocks, paths = [], [path for rows in surface().values() for path in rows]
    for reason, names in KNOWN["absent"].items():
        owners: dict[str, list[str]] = {}
        for name in sorted(names):
            owner = max((p for p in paths if name.startswith((f"{p}.", f"{p}("))), key=len, default=name)
            owners.setdefault(owner, []).extend([name[len(owner) :].lstrip(".")] if owner != name else [])
        shown = [f"`{owner}`" + (f" ({', '.join(members)})" if members else "") for owner, members in owners.items()]
        blocks.append(f"**{reason}**\n{', '.join(shown)}")
    return "\n\n".join(blocks)


TABLES: dict[str, Callable[[], str]] = {"settings": settings_tables, "classes": classes_table, "absent": absent_table}


MARK = re.compile(r"^<!-- table: (\w+) -->\n.*\n", re.MULTILINE)
"""Where a table stands in a page: a mark, and a line for those who read the page as a file."""


def with_tables(text: str) -> str:
    """A page with each table in the place of its mark."""
    return MARK.sub(lambda match: TABLES[match[1]]() + "\n", text)


if __name__ == "__main__":
    print("\n\n".join(make() for make in TABLES.values()))
