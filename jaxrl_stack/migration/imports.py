"""Migration of a script's RLlib imports and of the imported names to this package."""

from __future__ import annotations

import ast
import re
import textwrap

from jaxrl_stack.migration.bindings import Bindings, root_of
from jaxrl_stack.migration.names import PAGE, Target, is_rllibs, module_here, target_of, why_not
from jaxrl_stack.migration.settings import SECTIONS, place_of_method
from jaxrl_stack.migration.source import SourceCode, comments_between

_PAGE = f"{PAGE}#imports"
_WIDTH = 88
_OLD_STACK = "there is no old API stack. The name is None, for branches that never run. Write models as RLModules."
_OLD_STACK_USED = "there is no old API stack: write models as RLModules."


def rewrite_imports(source: SourceCode, bindings: Bindings) -> None:
    """Rewrites imports to this package, and the uses of renamed names."""
    renamed: dict[str, str] = {}
    coming: dict[str, str] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "ray" and any(alias.name == "rllib" for alias in node.names):
                _from_ray(source, node)
            elif is_rllibs(node.module):
                renamed |= _import_from(source, bindings, node)
                coming |= _coming(source, node)
        elif isinstance(node, ast.Import) and any(is_rllibs(alias.name) for alias in node.names):
            _import(source, node)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id in coming:
            source.to_do(_place_of_use(source, node), f"`{node.id}`: {coming[node.id]}", _PAGE)
        if isinstance(node, ast.Name) and node.id in renamed:
            source.replace(node, renamed[node.id])
        elif isinstance(node, ast.Attribute) and bindings.resolve(node) == "ray.rllib":
            if getattr(root_of(node), "id", "") == "ray":
                source.replace(node, "jaxrl_stack")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            _path_in_a_string(source, node, node.value)


def _import_from(source: SourceCode, bindings: Bindings, node: ast.ImportFrom) -> dict[str, str]:
    """Rewrites an import statement ``from module import names`` so that it imports from this package.

    Returns ``{old name: new name}`` for the imported names whose uses in the script must be renamed.
    """
    module = str(node.module)
    groups: dict[str, list[str]] = {}
    renamed, problems = {}, {}
    of_old_stack = [alias for alias in node.names if _is_of_old_stack(module, alias.name)]
    for alias in of_old_stack:
        problem = _OLD_STACK_USED if _is_used(source, alias) else _OLD_STACK
        problems.setdefault(problem, []).append(f"`{alias.name}`")
    for alias in node.names:
        if alias in of_old_stack:
            if _is_used(source, alias):
                groups.setdefault(module, []).append(ast.unparse(alias))
            continue
        target = Target(module_here(module), "*") if alias.name == "*" else target_of(module, alias.name)
        if target.problem:
            problems.setdefault(target.problem, []).append(f"`{alias.name}`")
        name = f" as {alias.asname}" if alias.asname else ""
        if target.name != alias.name and not alias.asname:
            taken = bindings.full.get(target.name)
            same = taken is not None and is_rllibs(taken) and target_of(*taken.rsplit(".", 1)) == target
            if alias.name in bindings.assigned or target.name in bindings.assigned or (taken and not same):
                name = f" as {alias.name}"
            else:
                renamed[alias.name] = target.name
        entry = target.name + name
        if entry not in groups.setdefault(target.module, []):
            groups[target.module].append(entry)
    for problem, names in problems.items():
        source.to_do(node, f"{', '.join(names)}: {problem}", _PAGE)
    unchanged = [name.name + (f" as {name.asname}" if name.asname else "") for name in node.names]
    if list(groups.values()) == [unchanged] and not of_old_stack:
        start = source.start(node)
        match = re.match(rf"from\s+{re.escape(module)}", source.code_of(node))
        if match:
            source.replace_span(start + match.end() - len(module), start + match.end(), next(iter(groups)))
            return renamed
    indentation = source.indentation(node.lineno)
    statements = [_statement(to, names, indentation) for to, names in groups.items()]
    unused = [alias for alias in of_old_stack if not _is_used(source, alias)]
    statements += [f"{alias.asname or alias.name} = None" for alias in unused]
    source.replace_statement(node, [*comments_between(source.code_of(node)), *statements])
    return renamed


def _is_of_old_stack(module: str, name: str) -> bool:
    """Whether a name belongs to RLlib's old API stack and has no counterpart."""
    is_old = "._old_api_stack" in module or module.endswith("_old_api_stack") or name.endswith("OldAPIStack")
    return is_old and bool(target_of(module, name).problem)


def _is_used(source: SourceCode, alias: ast.alias) -> bool:
    """Returns whether a script uses an imported name outside of the branches of if statements and conditional
    expressions.

    If the migration replaced a name without a counterpart by None, such a use could fail.
    """
    name = alias.asname or alias.name
    uses = (node for node in ast.walk(source.tree) if isinstance(node, ast.Name) and node.id == name)
    return any(not _is_in_branch(source, use) for use in uses)


def _is_in_branch(source: SourceCode, node: ast.AST) -> bool:
    while node in source.parents:
        child, node = node, source.parents[node]
        if isinstance(node, ast.If | ast.IfExp) and child is not node.test:
            return True
    return False


def _coming(source: SourceCode, node: ast.ImportFrom) -> dict[str, str]:
    """Returns ``{name in the script: reason}`` for the imported names that get a to-do comment where the user's script
    uses them.

    These are names that can be imported from this package but raise an error when used, and names of RLlib's old API
    stack that the script uses outside of ``if`` branches (see `_is_used`).
    """
    module = str(node.module)
    old = [alias for alias in node.names if alias.name != "*" and _is_of_old_stack(module, alias.name)]
    used = {alias.asname or alias.name: _OLD_STACK_USED for alias in old if _is_used(source, alias)}
    targets = {
        name.asname or name.name: target_of(str(node.module), name.name) for name in node.names if name.name != "*"
    }
    later = {name: target.problem for name, target in targets.items() if target.can_be_imported and target.problem}
    return later | used


def _place_of_use(source: SourceCode, node: ast.Name) -> ast.AST:
    """Finds the syntax tree node for a to-do comment about an unsupported name.

    This is the config method call that has the name in its arguments, otherwise the name itself.
    """
    child, parent = node, source.parents[node]
    while isinstance(parent, ast.expr | ast.keyword) and not isinstance(parent, ast.Attribute):
        if (
            isinstance(parent, ast.Call)
            and child is not parent.func
            and isinstance(parent.func, ast.Attribute)
            and parent.func.attr in SECTIONS
        ):
            return place_of_method(parent)
        child, parent = parent, source.parents[parent]
    return node


def _statement(module: str, names: list[str], indentation: str) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(indentation + line) <= _WIDTH:
        return line
    inside = textwrap.indent(",\n".join(names), f"{indentation}    ")
    return f"from {module} import (\n{inside},\n{indentation})"


def _from_ray(source: SourceCode, node: ast.ImportFrom) -> None:
    """Rewrites ``from ray import rllib, ...`` as ``import jaxrl_stack as rllib``; keeps other imported names."""
    others = [ast.unparse(alias) for alias in node.names if alias.name != "rllib"]
    name = next(alias.asname or alias.name for alias in node.names if alias.name == "rllib")
    lines = [f"from ray import {', '.join(others)}"] if others else []
    source.replace_statement(node, [*lines, f"import jaxrl_stack as {name}"])


def _import(source: SourceCode, node: ast.Import) -> None:
    """Rewrites ``import module`` so that it imports the module of this package; adds ``import ray`` if the script uses
    other parts of Ray.
    """
    lines, needs_ray = [], False
    for alias in node.names:
        if not is_rllibs(alias.name):
            lines.append(f"import {ast.unparse(alias)}")
            continue
        module = module_here(alias.name)
        if problem := why_not(module):
            source.to_do(node, f"`{alias.name}`: {problem}", _PAGE)
        lines.append(f"import {module}" + (f" as {alias.asname}" if alias.asname else ""))
        needs_ray = needs_ray or not alias.asname
    if needs_ray and _uses_ray(source.tree):
        lines.insert(0, "import ray")
    source.replace_statement(node, lines)


def _uses_ray(tree: ast.Module) -> bool:
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return any(
        isinstance(node.value, ast.Name) and node.value.id == "ray" and node.attr != "rllib" for node in attributes
    )


def _path_in_a_string(source: SourceCode, node: ast.Constant, path: str) -> None:
    """Replaces RLlib's path of a class in a string, such as ``"ray.rllib.algorithms.ppo.PPO"``, by the path in this
    package.
    """
    if not re.fullmatch(r"ray\.rllib(\.\w+)+", path) or isinstance(source.parents[node], ast.JoinedStr):
        return
    target = target_of(*path.rsplit(".", 1))
    code = source.code_of(node)
    if target.problem:
        source.to_do(node, f"{code}: {target.problem}", _PAGE)
    elif path in code:
        source.replace(node, code.replace(path, f"{target.module}.{target.name}"))
