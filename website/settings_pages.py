"""The reference of settings, made of their declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_config_class
from jaxrl_stack.algorithms.settings import ACTORS, DATA, Declarations, Setting
from jaxrl_stack.algorithms.settings_display import short

KINDS = {"static": "static", "traced": "traced", "host": "host", "inert": "no effect", "later": "default only"}
DRIVERS = {ACTORS: "gymnasium only", DATA: "recorded data only"}
BREAK = "\n"
"""Line break in a cell, until its text is escaped."""
HEAD = """*Static* settings decide shapes or structure: another value compiles another program. *Traced* ones
are arguments of the compiled program: another value compiles nothing, and members of a
[population](../populations.md) may differ in it. *Host* settings are read by Python around the
programs. "Schedule" marks numbers that may also be `[[0, value], [timestep, value], ...]`. "gymnasium
only" marks settings that act only where [gymnasium environments](../host_environments.md) are sampled,
"recorded data only" settings that act only where [recorded data](../offline.md) is read.
"""


def row(setting: Setting) -> str:
    """A setting as a row of its section's table: the meaning under the name, the facts next to both."""
    kind = KINDS[setting.kind] + (", schedule" if setting.schedulable else "")
    meaning = " ".join(setting.doc.split())
    if setting.instead:
        meaning += f" {setting.instead}"
    if setting.per_module:
        meaning += " May differ between the modules of several agents."
    facts = [f"`{short(setting.default, 40).replace('`', '')}`", kind]
    if setting.read_by in DRIVERS:
        facts.append(DRIVERS[setting.read_by])
    cells = (f"`{setting.name}`{{ #{setting.name} }} {BREAK} {meaning}", f" {BREAK} ".join(facts))
    return "| " + " | ".join(escaped(cell) for cell in cells).replace(BREAK, "<br>") + " |"


def escaped(cell: str) -> str:
    """A cell of a table: bars and angle brackets outside of code marks are text."""
    parts = cell.split("`")
    prose = [part.replace("<", "&lt;").replace("|", "&#124;") for part in parts[::2]]
    code = [part.replace("|", "\\|") for part in parts[1::2]]
    return "`".join(part for pair in zip(prose, [*code, ""], strict=False) for part in pair).removesuffix("`")


def table(settings: Iterable[Setting]) -> Iterator[str]:
    yield '<div class="settings" markdown>\n'
    yield "| setting | default, kind |"
    yield "|---|---|"
    yield from (row(setting) for setting in settings)
    yield "\n</div>"


def sections(declarations: Declarations, wanted: Iterable[str]) -> Iterator[str]:
    """A heading and a table for each section that has some of the wanted settings."""
    wanted = set(wanted)
    for section, doc in declarations.section_docs.items():
        settings = [
            s for s in declarations.by_name.values() if declarations.section_of[s.name] == section and s.name in wanted
        ]
        if settings:
            yield f"\n## {section}()\n\n{doc}\n"
            yield from table(settings)


def shared() -> Declarations:
    """The settings of every algorithm."""
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

    return AlgorithmConfig._declarations


def own_settings(name: str) -> tuple[Declarations, set[str]]:
    """An algorithm's declarations, and the settings that it adds or gives another default."""
    declarations, base = get_algorithm_config_class(name)._declarations, shared()
    changed = {
        setting
        for setting, own in declarations.by_name.items()
        if setting not in base.by_name or own.differs_from_default(base.by_name[setting].default)
    }
    return declarations, changed


def pages() -> dict[str, str]:
    """``{path on the site: text}``."""
    base = shared()
    made = {
        "settings/all.md": "\n".join(
            [
                "# Settings of every algorithm",
                "",
                "Look up what a setting means, its default, and whether changing it compiles a new program. Settings "
                "(hyperparameters, options) are set by the config's method of their section, "
                "`PPOConfig().training(lr=1e-3)`.",
                "",
                HEAD,
                *sections(base, base.by_name),
                "",
            ]
        )
    }
    for name in ALGORITHMS:
        declarations, changed = own_settings(name)
        made[f"settings/{name.lower()}.md"] = "\n".join(
            [
                f"# Settings of {name}",
                "",
                f"Look up the settings (hyperparameters) that `{name}Config` adds to "
                "[the settings of every algorithm](all.md), and the ones that have another default there. "
                f"[{name}'s page](../algorithms/{name.lower()}.md) says where they stand in the equations.",
                "",
                HEAD,
                *sections(declarations, changed),
                "",
            ]
        )
    return made
