"""Text and HTML of settings: values, one-line descriptions, tables."""

from __future__ import annotations

import dataclasses
import html
import inspect
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.setting_values import is_record, same

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.settings import Setting


def short(value: Any, width: int = 60) -> str:
    """Returns a text of at most `width` characters for a value, for tables and messages; longer texts are cut off.
    Classes and functions appear by name.
    """
    if isinstance(value, type) or inspect.isroutine(value):
        text = getattr(value, "__qualname__", repr(value))
    elif is_record(value):
        fields = [f for f in dataclasses.fields(value) if not same(getattr(value, f.name), _default_of(f))]
        text = f"{type(value).__name__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in fields)})"
    else:
        text = repr(value)
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def env_name(env: Any) -> str:
    """Name of the environment of a config: an id, or the name of its class."""
    if isinstance(env, str):
        return env
    return env.__name__ if isinstance(env, type) else type(env).__name__


def _default_of(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def describe(setting: Setting) -> str:
    """Returns one line that describes a setting: its meaning, its default, and notes on other values if needed.

    If the setting is traced, the line says that other values need no recompilation. If this package ignores the setting
    or supports only its default, the line says so and names the alternative.
    """
    notes = [f"Default: {short(setting.default)}."]
    if setting.schedulable:
        notes.append("Number or schedule [[0, value], [timestep, value], ...]; traced.")
    elif setting.kind == "traced":
        notes.append("Traced: other values do not recompile.")
    elif setting.kind == "inert":
        notes.append(f"No effect here: {setting.instead}")
    elif setting.kind == "later":
        notes.append(f"Other values come later; {setting.instead}")
    return " ".join([setting.doc, *notes])


_CHANGED = ("section", "setting", "value", "default")


def _changed(config: AlgorithmConfig) -> list[tuple[str, ...]]:
    """Table rows of the settings that differ from the class's defaults."""
    return [
        (section, s.name, short(vars(config)[s.attribute], 70), short(s.default, 30))
        for section in config._declarations.section_docs
        for s in config._declarations.in_section(section)
        if s.differs_from_default(vars(config)[s.attribute])
    ]


def config_text(config: AlgorithmConfig) -> str:
    """Table of the settings that differ from the defaults."""
    rows = _changed(config)
    title = f"{type(config).__name__}{' (frozen)' if config.is_frozen else ''}"
    if not rows:
        return f"{title}: all settings at their defaults"
    widths = [max(len(row[i]) for row in [_CHANGED, *rows]) for i in range(4)]
    table = [_CHANGED, tuple("-" * width for width in widths), *rows]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join([title, *(line.rstrip() for line in lines)])


def config_html(config: AlgorithmConfig) -> str:
    """HTML for notebooks: settings that differ from the defaults, with the others collapsed."""
    frozen = " (frozen)" if config.is_frozen else ""
    changed = _changed(config)
    parts = [f"<b>{html.escape(type(config).__name__)}</b>{frozen}"]
    parts.append(_html_table(_CHANGED, changed) if changed else "<div>all settings at their defaults</div>")
    for section, doc in config._declarations.section_docs.items():
        settings = config._declarations.in_section(section)
        if settings:
            rows = [(s.name, short(vars(config)[s.attribute]), s.kind, s.doc) for s in settings]
            summary = f"<summary><code>{section}()</code> {html.escape(doc)}</summary>"
            table = _html_table(("setting", "value", "kind", "meaning"), rows)
            parts.append(f"<details>{summary}{table}</details>")
    return "".join(parts)


def _html_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def row(tag: str, cells: tuple[str, ...]) -> str:
        return "".join(f"<{tag} style='text-align:left'>{html.escape(cell)}</{tag}>" for cell in cells)

    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in rows)
    return f"<table><thead><tr>{row('th', header)}</tr></thead><tbody>{body}</tbody></table>"
