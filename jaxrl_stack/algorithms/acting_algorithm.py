"""What an Algorithm has for acting with what it has learned: modules, weights, policies, single actions."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.compat.algorithm_calls import unknown_arguments
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.policy.policy import Policy
from jaxrl_stack.utils.streams import Stream, stream_key

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner_group import LearnerGroup
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.execution.driver import Driver


class ActingAlgorithm:
    """The part of an Algorithm that acts."""

    _config: AlgorithmConfig
    driver: Driver
    learner_group: LearnerGroup
    _action_count: int
    _is_stopped: bool

    @property
    def config(self) -> AlgorithmConfig:
        """The frozen config."""
        return self._config

    @config.setter
    def config(self, value: Any) -> None:
        raise AttributeError(
            f"{type(self).__name__}.config cannot be replaced. Call change_settings(lr=...) to train on with other "
            f"values, or reset(config) to start from the beginning."
        )

    def _eager_if_asked(self) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError

    def _check_is_running(self) -> None:
        if self._is_stopped:
            raise RuntimeError(f"This {type(self).__name__} was stopped; build a new one from its config.")

    def _check_has_module(self, module_id: str, called: str) -> None:
        """Raise unless there is a module.

        Args:
            module_id: Its id.
            called: The call that names it, as a format of the id: what to write is made of it.

        Raises:
            KeyError: If there is none.
        """
        self._check_is_running()
        ids = sorted(self.driver.module_ids)
        if module_id not in ids:
            raise KeyError(f"No module {module_id!r}; there are {ids}. Name one of them: {called.format(ids[0])}.")

    @property
    def offline_data(self) -> Any:
        """The `OfflineData` that training reads; None where it samples."""
        return getattr(self.driver.step, "data", None)

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """The module with the current weights.

        Training does not touch it; it keeps these weights until the next call, which brings the same object up to
        date.

        Raises:
            KeyError: If there is no such module.
        """
        self._check_has_module(module_id, "get_module({!r})")
        return self.driver.modules()[module_id]

    def get_policy(self, policy_id: str = DEFAULT_MODULE_ID) -> Policy:
        """Everything that acts, as one object: both connector pipelines and the module with their current states.

        A snapshot; further training does not change it. Its greedy actions are those of `evaluate`.

        Args:
            policy_id: Which module acts.

        Raises:
            KeyError: If there is no such module.
            ValueError: If this process has no EnvRunner, whose connectors it would take.
        """
        self._check_has_module(policy_id, "get_policy({!r})")
        driver, config = self.driver, self.config
        module, env_to_module, module_to_env = driver.acting_parts(policy_id)
        settings = {}
        for mid in driver.module_ids:
            own = config.get_config_for_module(mid)
            settings[mid] = own.traced_values() | {n: own.static_value(n) for n in config._static_settings}
        with self._eager_if_asked():
            policy = Policy(
                module,
                env_to_module,
                module_to_env,
                module_id=policy_id,
                settings=settings,
                timesteps=self.driver.num_env_steps,
                seed=self.config.root_seed,
                like=self._served,
            )
            # The learners' weights: a runner gets them when it samples next.
            policy.set_state(
                {
                    COMPONENT_RL_MODULE: self.get_weights([policy_id])[policy_id],
                    COMPONENT_ENV_TO_MODULE_CONNECTOR: driver.env_to_module_state_of(policy_id),
                }
            )
        self._served = policy
        return policy

    _served: Policy | None = None

    def get_weights(self, policies: Collection[str] | None = None) -> dict[str, Any]:
        """``{module_id: {name: array}}``: copies of the current weights of the named modules, or of all."""
        return self.learner_group.get_weights(policies)

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Take over what `get_weights` returned; modules that it leaves out keep theirs."""
        self.driver.set_weights(weights)

    def compute_single_action(
        self,
        observation: Any,
        state: Any = None,
        *,
        explore: bool | None = None,
        policy_id: str = DEFAULT_MODULE_ID,
        full_fetch: bool = False,
        **unknown: Any,
    ) -> Any:
        """The action for one observation of the environment, through both connector pipelines.

        Connectors that keep a history per episode (frame stacks, previous actions) see the observation as the first
        of an episode.

        Args:
            observation: One observation, without batch axis, as the environment gives it.
            state: Recurrent state of the module: what the last call of the same episode returned; None at its start.
            explore: Sample the action or take the greedy one; None for ``config.explore``.
            policy_id: The module that acts.
            full_fetch: Also return the recurrent state and the module's outputs.
            **unknown: None. Other packages' ``deterministic`` is answered with `explore`.

        Returns:
            The action as the environment takes it (NumPy); with a state or `full_fetch`, ``(action, state after it,
            outputs)``.

        Raises:
            ValueError: If the observation does not fit the observation space, or the state the module; or if the module
                is for learners only.
            KeyError: If there is no such module.
            TypeError: For an unknown argument.
        """
        if unknown:
            takes = "observation, state, explore, policy_id and full_fetch"
            raise unknown_arguments(self, "compute_single_action", unknown, takes=takes)
        self._check_has_module(policy_id, "compute_single_action(observation, policy_id={!r})")
        recurrent = self._recurrent_state(policy_id, state) if state else None
        explore = bool(self.config.explore) if explore is None else bool(explore)
        self._action_count += 1
        key = jax.random.fold_in(stream_key(self.config.root_seed, Stream.SINGLE_ACTION), self._action_count)
        outputs = self.driver.act(observation, module_id=policy_id, explore=explore, key=key, recurrent=recurrent)
        action = outputs.pop(Columns.ACTIONS_FOR_ENV)
        after = outputs.pop(Columns.STATE_OUT, {})
        return (action, after, outputs) if full_fetch or recurrent is not None else action

    def _recurrent_state(self, module_id: str, state: Any) -> Any:
        """A state that was given for a module, as arrays.

        Raises:
            ValueError: If it is none of this module.
        """
        initial = self.driver.acting_parts(module_id)[0][module_id].get_initial_state()
        if not jax.tree.leaves(initial):
            raise ValueError(f"compute_single_action(state={state!r}): module {module_id!r} has no recurrent state.")
        given, needed = (jax.tree.map(np.shape, each) for each in (state, initial))
        if given != needed:
            raise ValueError(
                f"compute_single_action(state=...) has arrays of the shapes {given}, and module {module_id!r} a state "
                f"of {needed}: pass the second value that the last call returned, or None at the start of an episode."
            )
        return jax.tree.map(lambda x, like: np.asarray(x, like.dtype), state, initial)

    def compute_actions(
        self,
        observations: Mapping[Any, Any],
        state: Mapping[Any, Any] | None = None,
        *,
        explore: bool | None = None,
        policy_id: str | None = None,
        full_fetch: bool = False,
        **unknown: Any,
    ) -> Any:
        """`compute_single_action` for every observation of a dict; with several agents, with the policy of each agent.

        Args:
            observations: ``{agent id: observation}``; with one agent, under any names.
            state: Recurrent states by agent: what the last call of the same episode returned; {} at its start, as for
                those that it leaves out.
            explore: As for `compute_single_action`.
            policy_id: The module that acts for all of them; None for those that `policy_mapping_fn` says.
            full_fetch: Also return the recurrent states and the modules' outputs.
            **unknown: None.

        Returns:
            ``{agent id: action}``; with a state or `full_fetch`, ``(actions, states after them, outputs)``, by agent.

        Raises:
            ValueError: As for `compute_single_action`; or if it is not known which policy an agent has.
            KeyError: If there is no such module.
            TypeError: For an unknown argument.
        """
        if unknown:
            takes = "observations, state, explore, policy_id and full_fetch"
            raise unknown_arguments(self, "compute_actions", unknown, takes=takes)
        policies = {agent: policy_id or self._policy_of(agent) for agent in observations}
        states = state or {}
        found = {
            agent: self.compute_single_action(
                obs, states.get(agent), explore=explore, policy_id=policies[agent], full_fetch=True
            )
            for agent, obs in observations.items()
        }
        actions, after, outputs = ({agent: own[i] for agent, own in found.items()} for i in range(3))
        return (actions, after, outputs) if full_fetch or state is not None else actions

    def _policy_of(self, agent_id: Any) -> str:
        """The policy that acts for an agent.

        Raises:
            ValueError: There is no such agent, or each episode says it.
        """
        module_map = self.driver.module_map
        if not module_map.is_multi_agent:
            return DEFAULT_MODULE_ID
        if agent_id not in module_map.module_of:
            raise ValueError(
                f"compute_actions() got an observation of {agent_id!r}, and the agents are "
                f"{list(module_map.module_of)}. Name one of them, or pass policy_id=."
            )
        if module_map.slots:
            raise ValueError(
                f"compute_actions() got an observation of {agent_id!r}, and which policy it has is said by "
                f"policy_mapping_fn for each episode. Pass policy_id=, one of {list(module_map.slots)}."
            )
        return module_map.module_of[agent_id]
