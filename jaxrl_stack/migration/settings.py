"""Settings of configs: names of RLlib's past."""

from __future__ import annotations

import ast
import re

from jaxrl_stack.algorithms.base_settings import BASE_SECTIONS
from jaxrl_stack.algorithms.old_names import OLD_NAMES
from jaxrl_stack.migration.names import PAGE, table
from jaxrl_stack.migration.source import Source, lines

_PAGE = f"{PAGE}#settings-of-the-past"
SECTIONS = frozenset({section.name for section in BASE_SECTIONS} | {"exploration", "overrides", "rollouts"})
"""Methods of configs: those of today, the ones that are gone, and `overrides`, which takes the same settings."""
_METHODS = {
    "exploration": "env_runners(explore=...) says whether to explore, and RLModule._forward_exploration() how "
    "(DQN: training(epsilon=...))."
}
"""Method of a config that is gone → what to write."""


def rewrite_settings(source: Source) -> None:
    """Give settings of configs the names of today, where the value stays the same; note the others."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and any(_is_local_mode(target) for target in node.targets):
            source.replace(node.value, "False")  # Ray has no local mode any more
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method = node.func.attr
        if method == "build" and not node.args and not node.keywords and _is_config(node.func.value):
            source.rename_attribute(node.func, "build_algo")
        elif method in ("log_value", "log_dict"):
            _reduction(source, node)
        elif method in _METHODS and node.keywords:
            source.to_do(place_of_method(node), _METHODS[method], _PAGE)
        elif method in SECTIONS:
            today = table("methods").get(method, method) if _is_config(node.func.value) else method
            if today != method:
                source.rename_attribute(node.func, today)
            for keyword in node.keywords:
                _setting(source, today, keyword)
            if method == "framework":
                _framework(source, node)


def _reduction(source: Source, node: ast.Call) -> None:
    """``reduce`` as in Ray 2.52: None keeps all values, here ``"item_series"`` does; a smoothed mean is ``"ema"``."""
    given = {keyword.arg for keyword in node.keywords}
    for keyword in node.keywords:
        if keyword.arg != "reduce" or not isinstance(keyword.value, ast.Constant):
            continue
        if keyword.value.value is None:
            source.replace(keyword.value, '"percentiles"' if "percentiles" in given else '"item_series"')
        elif keyword.value.value == "mean" and "ema_coeff" in given:
            source.replace(keyword.value, '"ema"')


def _is_local_mode(target: ast.AST) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "local_mode"


def _is_config(node: ast.expr) -> bool:
    """Whether an expression ends in a section of a config, or is called like one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in SECTIONS
    name = node.func if isinstance(node, ast.Call) else node
    return getattr(name, "id", "").lower().endswith("config")


def place_of_method(node: ast.Call) -> ast.AST:
    """Of a call in a chain of calls: the lines from the method's name on."""
    first = node.func.end_lineno or node.lineno
    return lines(first, node.end_lineno or first)


def _setting(source: Source, section: str, keyword: ast.keyword) -> None:
    name = keyword.arg
    if isinstance(keyword.value, ast.Dict) and str(name).startswith("model"):
        _keys(source, keyword.value)
    renamed = table("settings").get(name or "")
    old = next((old for old in OLD_NAMES if old.name == name and (not old.sections or section in old.sections)), None)
    if section == "api_stack" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False:
        source.to_do(keyword, f"`{name}=False`: there is no old API stack; write models as RLModules.", _PAGE)
    if renamed is None and old is None:
        return
    if renamed is None and old is not None:
        form = re.match(r"(\w+)\((\w+)=\.\.\.\)", old.instead)
        if form is not None and form[1] == section and not old.only_as_key:
            renamed = form[2]
        elif form is not None and form[1] == section and old.only_as_key:
            renamed = old.maps_to
    if renamed:
        source.rename_keyword(keyword, renamed)
    elif old is not None and not (old.maps_to and not old.only_as_key):  # what maps is taken, with a warning
        instead = f"write {old.instead}." if old.instead else "leave it out: nothing replaces it."
        source.to_do(keyword, f"`{name}` is gone; {instead}", _PAGE)


def _keys(source: Source, settings: ast.Dict) -> None:
    """Settings of the default networks."""
    for key in settings.keys:
        if isinstance(key, ast.Constant) and key.value in table("model_settings"):
            source.replace(key, f'"{table("model_settings")[str(key.value)]}"')


def _framework(source: Source, node: ast.Call) -> None:
    for value in [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "framework")]:
        if isinstance(value, ast.Constant) and value.value in ("torch", "tf", "tf2"):
            source.replace(value, '"jax"')
