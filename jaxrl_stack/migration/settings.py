"""Rewriting of settings with RLlib's old names."""

from __future__ import annotations

import ast
import re

from jaxrl_stack.algorithms.base_settings import BASE_OLD_NAMES, BASE_SECTIONS
from jaxrl_stack.migration.names import PAGE, table
from jaxrl_stack.migration.source import SourceCode, lines

_PAGE = f"{PAGE}#settings-of-the-past"
_MODELS = f"{PAGE}#catalogs-and-default-networks"
_NUM_LEARNERS = ("num_learners", "num_learner_workers")
_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)
SECTIONS = frozenset({section.name for section in BASE_SECTIONS} | {"exploration", "overrides", "rollouts"})
"""Methods of configs: those of today, the ones that are gone, and `overrides`, which takes the same settings."""
_METHODS = {
    "exploration": "env_runners(explore=...) sets whether to explore, RLModule._forward_exploration() how "
    "(DQN: training(epsilon=...))."
}
"""Method of a config that is gone → what to write."""


def rewrite_settings(source: SourceCode) -> None:
    """Renames RLlib's old settings whose values stay valid; adds to-do comments for other old settings."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and any(_is_local_mode(target) for target in node.targets):
            source.replace(node.value, "False")  # Ray has no local mode any more
        if isinstance(node, ast.FunctionDef):
            _builder(source, node)
        if isinstance(node, ast.Attribute) and node.attr == "train_batch_size" and isinstance(node.ctx, ast.Load):
            _read_batch_size(source, node)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method = node.func.attr
        if method.startswith("build"):
            _framework_of_model(source, node)
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
                _setting(source, today, node, keyword)
            if method == "framework":
                _framework(source, node)


def _reduction(source: SourceCode, node: ast.Call) -> None:
    """Rewrites the argument ``reduce`` of MetricsLogger calls as Ray 2.52 understands it.

    None becomes ``"item_series"``, or ``"percentiles"`` if the call has the argument `percentiles`. ``"mean"`` becomes
    ``"ema"`` if the call has the argument `ema_coeff`.
    """
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
    """Whether an expression looks like an AlgorithmConfig.

    True for a call of a config method such as ``training()``, for a name that ends in "config" (upper or lower case),
    and for a call of a class with such a name, like ``PPOConfig()``.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in SECTIONS
    name = node.func if isinstance(node, ast.Call) else node
    return getattr(name, "id", "").lower().endswith("config")


def place_of_method(node: ast.Call) -> ast.AST:
    """Creates a syntax tree node that covers the lines of one method call in a chain of calls.

    The lines extend from the method's name to the closing parenthesis. The node is the position for a to-do comment.
    """
    first = node.func.end_lineno or node.lineno
    return lines(first, node.end_lineno or first)


def _setting(source: SourceCode, section: str, call: ast.Call, keyword: ast.keyword) -> None:
    name = keyword.arg
    if isinstance(keyword.value, ast.Dict) and str(name).startswith("model"):
        _keys(source, keyword.value)
    renamed = table("settings").get(name or "")
    old = next(
        (old for old in BASE_OLD_NAMES if old.name == name and (not old.sections or section in old.sections)), None
    )
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
    if renamed and any(other.arg == renamed for other in call.keywords):
        source.to_do(keyword, f"`{name}` is now called `{renamed}`, and both are set. Leave one out.", _PAGE)
    elif renamed == "train_batch_size_per_learner":
        _batch_size(source, call, keyword)
    elif renamed:
        source.rename_keyword(keyword, renamed)
    elif old is not None and not (old.maps_to and not old.only_as_key):  # what maps is taken, with a warning
        instead = f"write {old.instead}." if old.instead else "leave it out: nothing replaces it."
        source.to_do(keyword, f"`{name}` is gone; {instead}", _PAGE)


def _batch_size(source: SourceCode, call: ast.Call, keyword: ast.keyword) -> None:
    """Rewrites ``train_batch_size``, the total of all learners, to ``train_batch_size_per_learner``: divides it by the
    number of learners, or adds a to-do comment if that number is unclear.
    """
    numbers = _numbers_of_learners(source, call)
    values = {ast.unparse(number) for number, _ in numbers}
    is_one = all(isinstance(number, ast.Constant) and number.value in (None, 0, 1) for number, _ in numbers)
    if is_one:
        source.rename_keyword(keyword, "train_batch_size_per_learner")
        return
    number, is_beside = numbers[0]
    is_simple = isinstance(number, ast.Constant | ast.Name | ast.Attribute)
    if len(values) == 1 and is_simple and (is_beside or isinstance(number, ast.Constant)):
        code = source.code_of(number)
        divisor = code if isinstance(number, ast.Constant) else f"max(1, {code})"
        source.rename_keyword(keyword, "train_batch_size_per_learner")
        start, end = source.span(keyword.value, source.arguments_start(call), source.end(call) - 1)
        if start == source.start(keyword.value) and not isinstance(keyword.value, _ATOMS):
            source.insert(start, "(")
            source.insert(end, ")")
        source.insert(end, f" // {divisor}")
    else:
        source.to_do(
            keyword,
            "`train_batch_size` counts the rows of all learners. Divide it by num_learners, and set "
            "train_batch_size_per_learner.",
            _PAGE,
        )


def _read_batch_size(source: SourceCode, node: ast.Attribute) -> None:
    """Rewrites the expression ``config.train_batch_size``, which reads the setting, as
    ``config.total_train_batch_size`` if a call in the script also sets ``train_batch_size``.
    """
    is_set = any(isinstance(other, ast.keyword) and other.arg == "train_batch_size" for other in ast.walk(source.tree))
    if is_set and getattr(node.value, "attr", getattr(node.value, "id", "")).lower().endswith("config"):
        source.rename_attribute(node, "total_train_batch_size")


def _numbers_of_learners(source: SourceCode, call: ast.Call) -> list[tuple[ast.expr, bool]]:
    """Finds the expressions in the script that may set ``num_learners`` for the config whose method is called in
    `call`.

    Returns each expression with a flag: True if it is a keyword argument in the same statement as `call`.

    If the statement, such as a chain of config methods, sets ``num_learners``, returns only the expressions in the
    statement. Otherwise returns the expressions of the whole script.
    """
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.keyword) and node.arg in _NUM_LEARNERS:
            found.append((node.value, source.statement_of(node) is source.statement_of(call)))
        elif isinstance(node, ast.Assign):
            targets = [target for target in node.targets if getattr(target, "attr", "") in _NUM_LEARNERS]
            found += [(node.value, False)] if targets else []
        elif isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
            found += [(value, False) for key, value in zip(keys, node.values, strict=True) if key in _NUM_LEARNERS]
    beside = [number for number in found if number[1]]
    return beside or found


def _framework_of_model(source: SourceCode, node: ast.Call) -> None:
    """Adds a to-do comment to ``encoder_config.build(framework="torch")`` and similar calls: in this package, methods
    that build models take `rngs` (random number generators).
    """
    names = {keyword.arg for keyword in node.keywords}
    values = [getattr(arg, "value", getattr(arg, "id", "")) for arg in node.args[:1]]
    if "rngs" not in names and ("framework" in names or values in (["torch"], ["tf2"], ["framework"])):
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        source.to_do(
            place_of_method(node),
            f"models need random numbers: call .{method}(rngs=self.rngs) in a module's setup().",
            _MODELS,
        )


def _builder(source: SourceCode, node: ast.FunctionDef) -> None:
    """Adds a to-do comment to a method of a catalog or model config such as ``build_encoder(self, framework)``, because
    in this package such methods also take `rngs`.
    """
    names = [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]
    if node.name.startswith("build") and "framework" in names and "rngs" not in names:
        message = f'`{node.name}` takes random numbers: def {node.name}(self, framework="jax", *, rngs).'
        source.to_do(lines(node.lineno, node.lineno), message, _MODELS)


def _keys(source: SourceCode, settings: ast.Dict) -> None:
    """Renames keys in a dict of settings for the default networks, from RLlib's names to names of this package."""
    for key in settings.keys:
        if isinstance(key, ast.Constant) and key.value in table("model_settings"):
            source.replace(key, f'"{table("model_settings")[str(key.value)]}"')


def _framework(source: SourceCode, node: ast.Call) -> None:
    for value in [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "framework")]:
        if isinstance(value, ast.Constant) and value.value in ("torch", "tf", "tf2"):
            source.replace(value, '"jax"')
