"""Calls users' hooks: methods of callback objects, and functions in the config."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxrl_stack.callbacks.callbacks import HOOKS, RLlibCallback
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.signatures import call_problem

EPISODE_HOOKS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end", "on_sample_end")
"""Hooks that are given episodes."""


class CallbackList:
    """Calls a hook of all callbacks: first of the callback objects, then of the functions in the config, each in order.

    Every hook is a method of the same name, ``callbacks.on_train_result(algorithm=..., ...)``; ``callbacks[0]`` is the
    first object. Hooks that an object does not override cost nothing. An error in a hook goes through to the caller,
    with a note that names the class and the hook.

    Args:
        callbacks: Instances of RLlibCallback.
        functions: Hook name -> a function or a list of functions.

    Raises:
        ValueError: If there is no such hook.
        TypeError: If an object is no callback, or a hook cannot be called with its arguments.
    """

    def __init__(
        self,
        callbacks: Sequence[RLlibCallback] = (),
        functions: Mapping[str, Callable[..., Any] | Iterable[Callable[..., Any]] | None] | None = None,
    ):
        self.callbacks = tuple(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, RLlibCallback):
                raise TypeError(f"{callback!r} is no callback: pass config.callbacks() a subclass of RLlibCallback.")
        self._calls: dict[str, list[tuple[str, Callable[..., Any]]]] = {name: [] for name in HOOKS}
        for callback in self.callbacks:
            for name, calls in self._calls.items():
                if _is_overridden(callback, name):
                    calls.append((f"{type(callback).__name__}.{name}()", getattr(callback, name)))
        for name, given in (functions or {}).items():
            _check_name(name)
            for function in _as_list(given):
                if not callable(function):
                    raise TypeError(
                        f"config.callbacks({name}=...) must be a function or a list of functions, not {function!r}."
                    )
                self._calls[name].append((f"config.callbacks({name}={_name_of(function)})", function))
        for name, calls in self._calls.items():
            for label, function in calls:
                _check_arguments(label, function, HOOKS[name])

    @classmethod
    def from_config(cls, config: Any) -> CallbackList:
        """Creates a CallbackList from a config: new instances of the config's callback classes, and the functions that
        the config has for hooks.

        Args:
            config: An AlgorithmConfig; ``callbacks_class`` and ``callbacks_<hook>`` are read.
        """
        classes = _as_list(config.callbacks_class)
        return cls([make() for make in classes], {name: getattr(config, f"callbacks_{name}") for name in HOOKS})

    def call(self, name: str, **kwargs: Any) -> None:
        """Calls the hook `name`: first the method of each callback object, then each function that the config has for
        this hook, in order.

        Args:
            name: Name of the hook.
            **kwargs: Arguments of the hook.

        Raises:
            ValueError: If there is no such hook.
        """
        _check_name(name)
        for label, function in self._calls[name]:
            _call(label, function, kwargs)

    def call_for_episode(
        self, name: str, env_index: int, episode: Any, *, env_runner: Any, metrics_logger: Any, **more: Any
    ) -> None:
        """Calls the hook `name` for an episode. Passes the episode, the index of its environment, its EnvRunner, the
        EnvRunner's environment and module, and the metrics logger.

        Args:
            name: Name of the hook.
            env_index: Index of the episode's environment in the runner.
            episode: The episode.
            env_runner: The runner.
            metrics_logger: The runner's logger.
            **more: Further arguments of the hook.
        """
        if not self._calls[name]:
            return  # also spares making the module
        if name == "on_episode_end":
            more.setdefault("prev_episode_chunks", [])
        more |= {"env": env_runner.env, "rl_module": env_runner.module}
        self.call(
            name, episode=episode, env_runner=env_runner, metrics_logger=metrics_logger, env_index=env_index, **more
        )

    def overrides(self, *names: str) -> bool:
        """Whether a callback object overrides any of the hooks `names`, or the config has a function for any hook of
        `names`.
        """
        for name in names:
            _check_name(name)
        return any(self._calls[name] for name in names)

    def states(self) -> dict[str, bytes | None]:
        """Pickled attributes of callback objects, ``{"<class name> <index>": bytes}``. The value is None for an object
        whose attributes cannot be pickled. Objects without attributes are left out.
        """
        found: dict[str, bytes | None] = {}
        for number, callback in enumerate(self.callbacks):
            if vars(callback):
                try:
                    found[f"{type(callback).__name__} {number}"] = pickle.dumps(vars(callback))
                except Exception:
                    found[f"{type(callback).__name__} {number}"] = None
        return found

    def stateful_since(self, before: Mapping[str, bytes | None]) -> list[str]:
        """Class names of the callback objects whose attribute values have changed since `before`, an earlier result of
        `states`. Objects whose attributes cannot be pickled count as changed.

        Args:
            before: Earlier result of `states`.
        """
        now = self.states()
        return [name.split()[0] for name, own in now.items() if own is None or own != before.get(name)]

    def __getitem__(self, index: int) -> RLlibCallback:
        return self.callbacks[index]

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in HOOKS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return functools.partial(self.call, name)


def overrides_episode_hooks(callbacks: CallbackList) -> bool:
    """Whether any callback overrides an episode hook, such as ``on_episode_end``, so that EnvRunners must build
    episodes.
    """
    return callbacks.overrides(*EPISODE_HOOKS)


def make_callback(
    callback_name: str,
    callbacks_objects: RLlibCallback | list[RLlibCallback] | None = None,
    callbacks_functions: Callable[..., Any] | list[Callable[..., Any]] | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Calls the hook `callback_name`: first the method of each callback object, then each function in
    `callbacks_functions`, both in the given order.

    Args:
        callback_name: Name of the hook.
        callbacks_objects: Instances of RLlibCallback.
        callbacks_functions: Functions for this hook.
        args: Positional arguments, for functions of one's own; the hooks take none.
        kwargs: Keyword arguments.

    Raises:
        ValueError: If there is no such hook.
    """
    _check_name(callback_name)
    calls = [
        (f"{type(callback).__name__}.{callback_name}()", getattr(callback, callback_name))
        for callback in _as_list(callbacks_objects)
    ]
    calls += [(f"{callback_name}={_name_of(function)}", function) for function in _as_list(callbacks_functions)]
    for label, function in calls:
        _call(label, function, kwargs or {}, args or ())


def _call(label: str, function: Callable[..., Any], kwargs: Mapping[str, Any], args: Sequence[Any] = ()) -> None:
    logger = kwargs.get("metrics_logger")
    uses = logger.used_by(f"The callback {label}") if isinstance(logger, MetricsLogger) else contextlib.nullcontext()
    try:
        with uses:
            function(*args, **kwargs)
    except Exception as error:
        error.add_note(f"Raised in the callback {label}.")
        raise


def _is_overridden(callback: RLlibCallback, name: str) -> bool:
    return getattr(type(callback), name) is not getattr(RLlibCallback, name) or name in vars(callback)


def _check_name(name: str) -> None:
    if name not in HOOKS:
        similar = difflib.get_close_matches(name, HOOKS, n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"there are {list(HOOKS)}."
        raise ValueError(f"There is no callback hook {name!r}; {hint}")


def _check_arguments(label: str, function: Callable[..., Any], names: Sequence[str]) -> None:
    """Raises TypeError if `function`, a callback hook, cannot be called with the keyword arguments `names`.

    A CallbackList runs this check before training, so that the error does not appear only at the end of the first
    episode.
    """
    problem = call_problem(function, **dict.fromkeys(names))
    if problem is not None:
        raise TypeError(
            f"The callback {label} cannot be called with the arguments {list(names)}: {problem}. "
            f"Arguments are passed by keyword; add **kwargs for the arguments that the function does not use."
        )


def _as_list(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _name_of(function: Callable[..., Any]) -> str:
    return function.__qualname__ if inspect.isroutine(function) else repr(function)
