"""EnvRunnerGroup: the env runner(s) of an algorithm behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl_stack.env.env_runner import EnvRunner


class EnvRunnerGroup:
    """The local env runner of an algorithm whose environments run on the device.

    Args:
        local_env_runner: The runner in this process.
    """

    def __init__(self, local_env_runner: EnvRunner):
        self._local = local_env_runner

    @property
    def local_env_runner(self) -> EnvRunner:
        """The runner in this process."""
        return self._local

    def foreach_env_runner(
        self,
        func: Callable[..., Any] | str,
        *,
        kwargs: dict[str, Any] | None = None,
        local_env_runner: bool = True,
        **options: Any,
    ) -> list[Any]:
        """Call a function with every runner, or a method of it by name.

        Args:
            func: ``func(env_runner, **kwargs)``, or the name of a method.
            kwargs: Its keyword arguments.
            local_env_runner: Whether the local runner, which is the only one, takes part.
            **options: RLlib's options about remote runners (``timeout_seconds``, ``remote_worker_ids``, ...); there
                are none of those here.

        Returns:
            The results.
        """
        del options
        if not local_env_runner:
            return []
        kwargs = kwargs or {}
        return [getattr(self._local, func)(**kwargs) if isinstance(func, str) else func(self._local, **kwargs)]

    def num_remote_env_runners(self) -> int:
        """Always 0: environments on the device need no actors."""
        return 0

    def num_healthy_env_runners(self) -> int:
        """The local one."""
        return 1

    def healthy_env_runner_ids(self) -> list[int]:
        """Indices of healthy remote runners: none."""
        return []

    def num_remote_worker_restarts(self) -> int:
        """Always 0."""
        return 0

    def stop(self) -> None:
        """Stop the local runner."""
        self._local.stop()
