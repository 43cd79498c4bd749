"""Computes actions of a policy that was trained on recorded data, if neither training nor evaluation has an
environment.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn

from jaxrl_stack import core
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.execution.evaluation import Evaluation
from jaxrl_stack.execution.host_place import send_weights
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.spaces import difference

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

_REMEDY = "Set environment(...), or evaluation(evaluation_config={'env': ...})."


class NoEvaluation(Evaluation):
    """Replaces the evaluation in runs without an environment: `evaluate` raises ValueError, but `act` computes actions,
    with connectors that are built from the config's spaces.
    """

    has_env = False
    _acting: EnvRunnerGroup | None = None

    def start(self) -> None:
        driver, interval = self._driver, self._driver.config.evaluation_interval
        if interval and driver.config.custom_evaluation_function is None and not driver.evaluates_on_data:
            step = type(driver.step).__name__
            self._refuse(
                f"evaluation(evaluation_interval={interval})",
                f"; for the loss on data, return it in {step}.held_out_rows()",
            )

    @property
    def runner(self) -> None:
        return None

    @property
    def group(self) -> EnvRunnerGroup:
        # For an evaluation function that needs no runners.
        return EnvRunnerGroup(False, config=self.config, num_env_runners=0, is_evaluation=True)

    def _refuse(self, what: str, more: str = "") -> NoReturn:
        raise ValueError(
            f"{what} needs an environment, and this algorithm has none. Set environment(...), or "
            f"evaluation(evaluation_config={{'env': ...}}){more}."
        )

    def evaluate(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("An evaluation")

    def record(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("record()")

    # ---------------------------------------------------------------------------------------------------------- acting

    def _acting_runner(self) -> SingleAgentEnvRunner:
        """EnvRunner without environments that computes actions with the config's connectors, created at the first use.

        Raises:
            ValueError: If the config's connectors cannot be built without an environment, or return other spaces than
                the module's.
        """
        if self._acting is None:
            self._acting = EnvRunnerGroup(self._make_runner(), num_env_runners=0, is_evaluation=True)
        runner: Any = self._acting.local_env_runner
        return runner

    def _make_runner(self) -> SingleAgentEnvRunner:
        config = self._driver.config.copy(copy_frozen=False).env_runners(create_env_on_local_worker=False)
        spaces: Any = {"__env_single__": (config.observation_space, config.action_space)}
        try:
            # As the local runner beside actors, it has no environments.
            runner = SingleAgentEnvRunner(config=config, worker_index=0, num_workers=1, spaces=spaces)
        except Exception as error:
            raise ValueError(
                f"Without an environment, the connectors and module for acting cannot be built: {error!r}. {_REMEDY}"
            ) from error
        for mid, trained in self._driver.module_spaces.items():
            for own, of_data in zip(runner.get_spaces()[mid], trained, strict=True):
                if difference(own, of_data) is not None:
                    raise ValueError(
                        "Without an environment, the connectors for acting are built from the config's spaces. They "
                        f"give the module the observation or action space {own}, but the module was trained with "
                        f"{of_data}. {_REMEDY}"
                    )
        return runner

    def act(self, observation: Any, **kwargs: Any) -> dict[str, Any]:
        runner, driver = self._acting_runner(), self._driver
        assert self._acting is not None
        send_weights(self._acting, driver.learner_group, driver.num_env_steps, driver.env_to_module_state())
        return runner.act(observation, **kwargs)

    def acting_parts(self, module_id: str) -> tuple[Any, Any, Any]:
        return self._acting_runner().acting_parts_for(module_id)

    # ----------------------------------------------------------------------------------------------------------- state

    def _stored_runner(self) -> SingleAgentEnvRunner | None:
        """Returns the runner whose connectors are saved in checkpoints, or None.

        Returns None if the config has no spaces. If the runner cannot be built, prints a notice and returns None.
        """
        driver = self._driver
        if None in (driver.config.observation_space, driver.config.action_space):
            return None
        try:
            runner = self._acting_runner()
        except ValueError as error:
            notice_once(f"Policy.from_checkpoint() cannot load the checkpoints of this run. {error}")
            return None
        if state := driver.env_to_module_state():
            runner.set_state({core.COMPONENT_ENV_TO_MODULE_CONNECTOR: state})
        return runner

    def described_runner(self) -> Any:
        return self._stored_runner()

    def get_state(self) -> dict[str, Any] | None:
        runner = self._stored_runner()
        names = [core.COMPONENT_ENV_TO_MODULE_CONNECTOR, core.COMPONENT_MODULE_TO_ENV_CONNECTOR, "weights_seq_no"]
        return None if runner is None else runner.get_state(names)

    def change_settings(self, config: AlgorithmConfig, names: Collection[str]) -> None:
        super().change_settings(config, names)
        self.stop()

    def reset(self, config: AlgorithmConfig) -> None:
        super().reset(config)
        self.stop()

    def stop(self) -> None:
        if self._acting is not None:
            self._acting.stop()
            self._acting = None
