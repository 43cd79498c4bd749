"""What a runner of environments on the host has of state: metrics, weights, connectors and random numbers."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.checkpoints.checkpointable import Parts, selected
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
from jaxrl_stack.env.env_runner import EnvRunner
from jaxrl_stack.env.sampling_metrics import SamplingMetrics
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule


class HostRunnerState(EnvRunner):
    """Metrics and states of a runner of host environments.

    Attributes:
        metrics: A `MetricsLogger`.
        num_workers: Number of runner actors.
    """

    metrics: MetricsLogger
    num_workers: int
    _counts: SamplingMetrics
    _policy: Any
    _connectors: Any
    _given_spaces: dict[str, tuple[gym.Space, gym.Space]] | None

    @abc.abstractmethod
    def reseed(self, *seeds: int) -> None:
        """Reset all environments at the next ``sample()``, with seeds that follow from these alone."""

    def take_metrics(self) -> dict[str, Any]:
        """What `metrics` was told since the last time, for `MetricsLogger.aggregate`; after what else is taken."""
        return self._counts.take_logged()

    def get_metrics(self) -> dict[str, Any]:
        return self._counts.report()

    def take_ended_episodes(self) -> EndedEpisodes:
        """Returns, lengths and durations of the episodes that ended since the last call or block."""
        return self._counts.take_ended()

    def take_agent_steps(self) -> dict[Any, int]:
        """Steps that each of several agents completed since they were taken or logged; {} where there is one."""
        return self._counts.take_agent_steps()

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Weights, connector states, counters and random numbers as nested dicts of NumPy arrays.

        The environments' own states are not among it: nothing in gymnasium's interface gives them.

        Args:
            components: Only these; None for all.
            not_components: Leave these out.
            **kwargs: None.
        """
        make = self._parts_of_state()
        return {name: make[name]() for name in selected(make, components, not_components, "an EnvRunner")}

    def _parts_of_state(self) -> dict[str, Callable[[], Any]]:
        return {
            "rl_module": lambda: dict(zip(("params", "rest"), self._policy.get_weights(), strict=True)),
            "env_to_module_connector": self._connectors.get_env_to_module,
            "module_to_env_connector": self._connectors.get_module_to_env,
            "weights_seq_no": lambda: self.weights_seq_no,
            "num_env_steps_sampled_lifetime": lambda: self._counts.lifetime_env_steps,
            "random": self._policy.get_random_state,
            "metrics_logger": self.metrics.get_state,
        }

    def acting_parts(self) -> tuple[MultiRLModule, EnvToModulePipeline, ModuleToEnvPipeline]:
        """The modules, without current weights, and both pipelines, without current states."""
        return self._policy.modules, self._connectors.env_to_module, self._connectors.module_to_env

    @abc.abstractmethod
    def acting_parts_of_modules(self) -> dict[str, Any]:
        """`acting_parts` of each module that acts, by its id."""

    def acting_parts_for(self, module_id: str) -> tuple[MultiRLModule, EnvToModulePipeline, ModuleToEnvPipeline]:
        """`acting_parts` of a module; of one that acts for no agent, those of the first one that does."""
        parts = self.acting_parts_of_modules()
        return parts[module_id] if module_id in parts else next(iter(parts.values()))

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """What builds a runner in the same place, with environments of its own."""
        connectors = self._connectors
        return (), {
            "config": self.config.for_checkpoints(connectors.env_to_module, connectors.module_to_env),
            "worker_index": self.worker_index,
            "num_workers": self.num_workers,
            "spaces": self._given_spaces,
        }

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Both connector pipelines."""
        return self._connectors.parts()

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over parts of what `get_state` returned; histories of running episodes stay.

        With "random", the next ``sample()`` resets all environments, with seeds that follow from it: none goes on.

        Raises:
            ValueError: For unknown parts.
        """
        selected(self._parts_of_state(), state, None, "an EnvRunner")  # raises for unknown ones
        if "rl_module" in state:
            self._policy.set_weights(state["rl_module"]["params"], state["rl_module"].get("rest", {}))
        self._connectors.set_env_to_module(
            state.get("env_to_module_connector") or {},
            keeps_histories="random" not in state,
            from_training=self.config.in_evaluation,
        )
        self._connectors.set_module_to_env(state.get("module_to_env_connector") or {})
        if "random" in state:
            # Environments start anew, unlike before: their own states are not saved.
            self.reseed(derived_seed("restored", *self._policy.numbers_of(state["random"])))
            self._policy.set_random_state(state["random"])
        if "metrics_logger" in state:
            self.metrics.set_state(state["metrics_logger"])
        if "weights_seq_no" in state:
            self.weights_seq_no = int(state["weights_seq_no"])
        if "num_env_steps_sampled_lifetime" in state:
            self._counts.note_lifetime(int(state["num_env_steps_sampled_lifetime"]))

    def share_weights(self, learner: Learner, *, num_env_steps_sampled_lifetime: int) -> None:
        """Act with the current weights of a learner in this process, without a copy of them.

        Args:
            learner: Makes new arrays when it changes its parameters.
            num_env_steps_sampled_lifetime: Env steps that all runners together have sampled.
        """
        policy: Any = self._policy
        params, rest = policy.refs
        policy.adopt_weights(*learner.weights_in_place(params, rest, policy.sharding))
        self.weights_seq_no = learner.num_updates
        self._counts.note_lifetime(num_env_steps_sampled_lifetime)

    def merge_connector_deltas(self) -> None:
        """Count this runner's own new statistics as known: what a group of one runner does in place of a merge."""
        self._connectors.merge_deltas()
