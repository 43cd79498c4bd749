"""Read-only view of a config for losses that JAX traces: some settings are arguments of the compiled program instead of
constants.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.tracing_errors import NO_VALUES, remedy


def current_values(settings: Mapping[str, Any], timesteps: Any, config_for: Callable[[str], Any]) -> dict[str, Any]:
    """Computes the current settings of all modules: replaces each schedule in `settings` by its current value.

    This is the value at `timesteps`, a lifetime step counter. To each module's settings, adds the settings that are
    constants in the compiled program; the module's config lists their names in ``_static_settings``.

    Args:
        settings: ``{"modules": {module_id: {name: float32 or schedule}}}``, and more schedules.
        timesteps: uint32[2], lifetime env steps.
        config_for: ``module_id -> its config``, which has the settings that are no arguments of the program
            (``_static_settings``); they are added as Python numbers.
    """
    values = schedules.values_at(settings, timesteps)
    for module_id, own in values["modules"].items():
        config = config_for(module_id)
        own |= {name: config.static_value(name) for name in config._static_settings}
    return values


class TracedConfigView:
    """Read-only view of a config. In the view, traced settings are the arrays that the compiled program gets as
    arguments; other settings are unchanged.

    ``view.clip_param`` is the ``float32[]`` array that travels through the compiled program (a schedule is
    already evaluated); every other attribute is the frozen config's own. So one program serves all values of
    the traced settings. The view is read-only and records which traced settings were read.
    """

    __slots__ = ("_config", "_reads", "_values", "_values_by_module")

    def __init__(
        self, config: Any, values: Mapping[str, Any], values_by_module: Mapping[str, Mapping[str, Any]] | None = None
    ):
        """Creates a view of a config, in which the arrays in `values` replace the settings of the same names.

        Args:
            config: The frozen config, which has all settings that are not traced.
            values: Setting name → current ``float32[]`` array.
            values_by_module: The same per module id, for `get_config_for_module`.
        """
        set_slot = super().__setattr__
        set_slot("_config", config)
        set_slot("_values", dict(values))
        set_slot("_values_by_module", dict(values_by_module or {}))
        # A dict keeps the order of reading: the latest is the likeliest culprit in an error.
        set_slot("_reads", {})

    @property
    def traced_reads(self) -> tuple[str, ...]:
        """Names of the traced settings (arrays in the compiled program) that code has read from this view. The most
        recently read setting comes first.
        """
        return tuple(reversed(self._reads))

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            self._reads.pop(name, None)
            self._reads[name] = None
            return self._values[name]
        return getattr(self._config, name)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if name in self._values else self._config[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a setting, ``view[name]``, or `default` for unknown names."""
        return getattr(self, name) if name in self._values else self._config.get(name, default)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"Cannot set {name}={value!r}: inside the compiled program the config is read-only. "
            "Set it on the AlgorithmConfig before the algorithm is built."
        )

    def get_config_for_module(self, module_id: str) -> TracedConfigView:
        """Returns a view of one module's config, with the module's own settings.

        In the view, traced settings are the current arrays that the compiled program gets as arguments.
        """
        view = TracedConfigView(
            self._config.get_config_for_module(module_id),
            self._values_by_module.get(module_id, self._values),
            self._values_by_module,
        )
        # Shared, so that reads through the module's view are known here too.
        object.__setattr__(view, "_reads", self._reads)
        return view

    def __repr__(self) -> str:
        return f"TracedConfigView({type(self._config).__name__}, traced={sorted(self._values)})"


@contextlib.contextmanager
def explain_traced_branches(view: TracedConfigView) -> Iterator[None]:
    """Context manager that replaces JAX's error about a Python branch on a traced array by a TypeError.

    An example of such a branch is ``if array:``. The new message contains the source line and a fix. If the code has
    read traced config settings, the message names them as the probable cause.

    Wrap the tracing of user code (losses, hooks) in this context manager.

    Args:
        view: The view that the code reads its settings from.

    Raises:
        TypeError: In place of JAX's errors about values that do not exist yet; names the line, and the setting and the
            way to make it static if a traced setting was read. Other errors get a note if there is a remedy.
    """
    try:
        yield
    except jax.errors.JAXTypeError as error:
        reads = view.traced_reads if isinstance(error, jax.errors.ConcretizationTypeError) else ()
        location, line = _user_line(error)
        if not reads:
            raise TypeError(
                f"{location}: this Python code needs the value of an array, which exists only while the compiled "
                f"program runs:\n    {line}\n{NO_VALUES}"
            ) from error
        on_line = [name for name in reads if re.search(rf"\b{re.escape(name)}\b", line)]
        names = on_line or list(reads)
        first = names[0]
        listed = ", ".join(repr(name) for name in names)
        raise TypeError(
            f"{location}: this Python code needs the value of an array, which exists only while the compiled program "
            f"runs:\n    {line}\n"
            f"Probable cause: {listed}, read {'on this line' if on_line else 'earlier (latest first)'}. Traced "
            f"settings such as {first!r} are arguments of the compiled program. Use jnp.where(...), or compile one "
            f"program for each value of the setting: config.experimental(_static_settings=[{first!r}])."
        ) from error
    except AttributeError as error:
        if sentence := remedy(error):
            error.add_note(sentence)
        raise


def _user_line(error: BaseException) -> tuple[str, str]:
    """Returns ``("file:line", source line)`` of the innermost frame outside of JAX in the error's traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not re.search(r"[\\/](jax|jaxlib)[\\/]", frame.filename):
            return f"{frame.filename}:{frame.lineno}", frame.line or ""
    return "unknown location", ""
