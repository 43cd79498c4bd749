"""Evaluation in a JAX environment by compiled programs in the learner's process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxrl_stack import core
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.env.device_env_runner import DeviceEnvRunner
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.env.module_pipelines import make_rollout, pure_pipelines
from jaxrl_stack.env.preprocessed_jax_env import with_preprocessors
from jaxrl_stack.env.randomized_jax_env import unrandomized, with_randomized_params
from jaxrl_stack.execution.evaluation import Amounts, Evaluation, Share, evaluation_results, health_of_runners
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.streams import Stream, stream_key

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner_group import LearnerGroup
    from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.videos.episodes import RecordedEpisode

_RUNNING = "running_evaluation"
"""Name of the part of a runner's state that contains unfinished evaluation episodes. Checkpoints contain this part only
if evaluations do not reset the environments.
"""


class DeviceEvaluation(Evaluation):
    """Evaluates in a JAX environment, between training steps.

    It uses the weights of a learner in this process without copies, and fetches those of learner actors.

    Args:
        driver, config: See `Evaluation`.

    Raises:
        ValueError: If spaces differ from training's, or the networks of evaluation do not fit the weights.
    """

    def __init__(self, driver: Driver, config: AlgorithmConfig):
        super().__init__(driver, config)
        env, context = unrandomized(driver.jax_env), driver.env_context
        if env is None or not config.is_same(driver.config, "env", "env_config"):
            resolved = config._resolve_env()
            env = with_preprocessors(config, resolved.make(check=not config.disable_env_checking))
            context = resolved.context
        assert env is not None
        env = with_randomized_params(config, env, trained=driver.config)
        pipelines = pure_pipelines(config, env, driver.module_map)
        self.check_spaces(pipelines.spaces)
        spec = self.module_spec()
        self._fetched = None if driver.learner is not None else FetchedWeights(driver.learner_group, self._own(spec))
        source: Any = self._fetched if driver.learner is None else driver.learner

        def connector_state() -> dict[str, Any]:
            pipelines.set_statistics(driver.env_to_module_state())
            return pipelines.env_to_module_states

        pure = source.pure if spec is None else PureModule(spec.build(seed=0).as_multi_rl_module())
        self._runner = DeviceEnvRunner(
            config=config,
            rollout=make_rollout(
                config, env, pipelines, pure, window_size=driver.config.metrics_num_episodes_for_smoothing
            ),
            pipelines=pipelines,
            learner=source,
            connector_state=connector_state,
            timesteps=lambda: counters.from_int(driver.num_env_steps),
            env_context=context,
        )
        self._group = EnvRunnerGroup(self._runner, num_env_runners=0, is_evaluation=True)

    def _own(self, spec: MultiRLModuleSpec | None) -> MultiRLModuleSpec:
        """Returns the spec of the evaluation's modules with ``inference_only=True``, which leaves out modules, and
        parts of modules, that only training needs.
        """
        driver = self._driver
        config = driver.config if spec is None else self.config
        return config.get_multi_rl_module_spec(spaces=driver.module_spaces, inference_only=True)

    @property
    def runner(self) -> DeviceEnvRunner:
        return self._runner

    @property
    def group(self) -> EnvRunnerGroup:
        return self._group

    def sync(self) -> None:
        if self._fetched is not None:
            self._fetched.fetch()

    def _key(self, iteration: int, call: int) -> jax.Array:
        """PRNG key of one evaluation, derived from `iteration`, the number of iterations done, and from `call`, the
        number of earlier evaluations since the last iteration.
        """
        key = stream_key(self._runner.config.root_seed, Stream.EVALUATION)
        return jax.random.fold_in(jax.random.fold_in(key, iteration), call)

    def evaluate(self, iteration: int, call: int = 0, is_training: Callable[[], bool] | None = None) -> dict[str, Any]:
        self.sync()
        config, key = self._runner.config, self._key(iteration, call)

        def sample(amounts: Amounts, is_first: bool) -> Sequence[Share]:
            reset = bool(is_first and config.evaluation_force_reset_envs_before_iteration)
            return [self._runner.evaluate(reset=reset, key=key, **amount) for _, amount in amounts]

        results = evaluation_results(config, [0], sample, module_map=self._driver.module_map)
        return {
            "env_runners": {**results, "weights_seq_no": self._driver.num_updates},
            **health_of_runners(self._group),
        }

    def record(self, iteration: int, call: int, num_episodes: int) -> tuple[list[RecordedEpisode], float]:
        self.sync()
        key, runner = self._key(iteration, call), self._runner
        return runner.record(key=key, num_episodes=num_episodes), runner.env.render_fps

    def act(self, observation: Any, **kwargs: Any) -> dict[str, Any]:
        self.sync()
        return self._runner.act(observation, **kwargs)

    def acting_parts(self, module_id: str) -> tuple[Any, Any, Any]:
        env_to_module, module_to_env = self._runner.pipelines.acting_for(module_id)
        return self._runner.rollout.pure.template, env_to_module, module_to_env

    # ----------------------------------------------------------------------------------------------------------- state

    def described_runner(self) -> Any:
        return self._runner if self.is_stored else None

    def get_state(self) -> dict[str, Any] | None:
        if not self.is_stored:
            return None
        own = [core.COMPONENT_ENV_TO_MODULE_CONNECTOR, core.COMPONENT_MODULE_TO_ENV_CONNECTOR, "weights_seq_no"]
        resets = self._runner.config.evaluation_force_reset_envs_before_iteration
        return self._runner.get_state([*own, *([] if resets else [_RUNNING])])

    def set_state(self, state: dict[str, Any], *, is_whole: bool) -> None:
        running = state.get(_RUNNING)
        if running is not None or is_whole:
            self._runner.restore_evaluation(running or {})

    def change_settings(self, config: AlgorithmConfig, names: Collection[str]) -> None:
        super().change_settings(config, names)
        self._group.change_settings(config, names)

    def reset(self, config: AlgorithmConfig) -> None:
        super().reset(config)
        self._group.reset_env_runners(config)

    def write_output(self) -> None:
        self._group.write_output()

    def stop(self) -> None:
        self._group.stop()


class _Weights(NamedTuple):
    """Weights of all modules, as two dicts ``{variable name: array}``: `params` contains the trained parameters, and
    `rest` all other variables.
    """

    params: dict[str, Any]
    rest: dict[str, Any]


class FetchedWeights:
    """Copy of the learner actors' weights in the process of a runner.

    The weights are as of the last `fetch`, which copies the current weights of the learner actors.

    Args:
        group: The learners.
        spec: Their modules, without parts that only training needs.

    Attributes:
        pure: The modules without their state.
        state: State of the modules: ``params`` and ``rest``, ``{ref: array}``.
        num_updates: Number of updates up to these weights.
    """

    def __init__(self, group: LearnerGroup, spec: MultiRLModuleSpec):
        self._group = group
        self.pure = PureModule(spec.build(seed=0).as_multi_rl_module())
        self.state = _Weights(self.pure.params, self.pure.rest)
        self.num_updates = 0
        self._module: MultiRLModule | None = None

    def fetch(self) -> None:
        """Copies the present weights from the learner actors to this process."""
        weights = self._group.weights_for_runners()
        # Learners' modules have more parts, and send no random streams.
        params, rest = (
            {ref: new.get(ref, leaf) for ref, leaf in present.items()}
            for new, present in zip((weights["params"], weights["rest"]), self.state, strict=True)
        )
        self.state, self.num_updates = _Weights(params, rest), self._group.num_updates
        self._module = None

    @property
    def module(self) -> MultiRLModule:
        """`MultiRLModule` with the weights that the last `fetch` copied, built at the first access after `fetch`."""
        if self._module is None:
            self._module = self.pure.bind(self.state.params, self.state.rest)
        return self._module
