"""Operations of a training step on the host (`Place`): sampling with EnvRunners, updates of learners, timers."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jaxrl_stack import core
from jaxrl_stack.acting.recording import NO_STEP_TIMES, EndedEpisodes, SampleBlock, newest_connector_states
from jaxrl_stack.core.experience import Experience, RecordingId
from jaxrl_stack.env.env_runner_group import ask_one, merges_env_runner_states
from jaxrl_stack.env.sampling_metrics import COMPILED_PIPELINES
from jaxrl_stack.episodes.multi_agent_episode import episodes_of_agents
from jaxrl_stack.execution.rollout_ops import sample_once, sample_rounds
from jaxrl_stack.execution.training_step import AsynchronousPlace, Sampled, TrainState
from jaxrl_stack.utils.metrics import (
    ALL_MODULES,
    DIFF_NUM_GRAD_UPDATES_VS_SAMPLER_POLICY,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_UPDATE_TIMER,
)
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.results import adds_up, merge_nested

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner_group import LearnerGroup
    from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
    from jaxrl_stack.env.host_env_runner import HostEnvRunner
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
    from jaxrl_stack.execution.plans import SampledUpdate, SamplePlan


class SamplingLog:
    """Counters, episodes and metrics of the samples that runners have returned.

    Args:
        config: The algorithm's config.

    Attributes:
        num_env_steps: Lifetime env steps.
        num_env_steps_lost: Part of these that no update has read, because their node died.
        num_episodes: Lifetime finished episodes.
        num_agent_steps: Lifetime steps of each of several agents.
        metrics: Merged metrics of the runners.
        step_times: Step times of all runners since the start of the iteration.
    """

    def __init__(self, config: AlgorithmConfig):
        self.num_env_steps = self.num_env_steps_lost = self.num_episodes = 0
        self.num_agent_steps: collections.Counter[Any] = collections.Counter()
        self.metrics = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
        self.step_times = NO_STEP_TIMES
        self._agents: tuple[Any, ...] = ()
        self._window: collections.deque[tuple[float, ...]] = collections.deque(
            maxlen=config.metrics_num_episodes_for_smoothing
        )

    def add(self, blocks: Iterable[SampleBlock]) -> None:
        """Adds the step counts, episode statistics and metrics of `blocks` to the totals of this `SamplingLog`. Each
        block contains the sampled steps of one EnvRunner.
        """
        for block in blocks:
            self.num_env_steps += block.num_env_steps
            self.num_episodes += len(block.report.episodes.returns)
            self._agents = tuple(block.report.episodes.agent_returns)
            self._window.extend(block.report.episodes.rows())
            self.num_agent_steps.update(block.report.agent_steps)
            self.step_times = self.step_times.plus(block.report.step_times)
        metrics = [block.report.metrics for block in blocks if block.report.metrics]
        if metrics:
            self.metrics.aggregate(metrics)

    def last_episodes(self) -> EndedEpisodes:
        """Statistics (returns, lengths, durations) of the last ``metrics_num_episodes_for_smoothing`` episodes that
        have finished, oldest first.
        """
        return EndedEpisodes.of(list(self._window), self._agents)

    def get_state(self) -> dict[str, Any]:
        """Returns the counters, episode statistics and runner metrics of this `SamplingLog` by name, except
        `num_env_steps`.
        """
        return {
            "episodes": vars(self.last_episodes()),
            "num_env_steps_lost_lifetime": self.num_env_steps_lost,
            "num_episodes_lifetime": self.num_episodes,
            "num_agent_steps_lifetime": dict(self.num_agent_steps),
            "runner_metrics": self.metrics.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the counters, episode statistics and runner metrics of this `SamplingLog` from `state`, a result of
        `get_state`.
        """
        self._window.clear()
        episodes = EndedEpisodes(**state["episodes"])
        self._agents = tuple(episodes.agent_returns)
        self._window.extend(episodes.rows())
        self.num_agent_steps = collections.Counter(state.get("num_agent_steps_lifetime", {}))
        self.num_env_steps_lost = int(state.get("num_env_steps_lost_lifetime", 0))
        self.num_episodes = int(state["num_episodes_lifetime"])
        self.metrics.set_state(state["runner_metrics"])


class Timers(dict[str, float]):
    """Timers by name: each has the sum of the measured seconds since the last `clear`."""

    def since(self, name: str, started: float) -> float:
        """Adds the seconds since `started` (a value of `time.perf_counter`) to the timer `name`; returns the present
        time.
        """
        now = time.perf_counter()
        self[name] = self.get(name, 0.0) + now - started
        return now


class HostPlace(AsynchronousPlace):
    """Operations of a training step on the host: sampling by EnvRunners, in this process or in actors, and compiled
    updates of the learners.

    Args:
        config: The algorithm's config.
        env_runner_group: The runners of training.
        learner_group: The learners.
        log: Records samples.
        samples_blocks: Whether runners return steps as recorded; otherwise they return episodes.
        shares_weights: Whether a runner of this process uses the arrays of a learner of this process, which saves
            copies after short updates.

    Attributes:
        timers: Seconds of sampling, learning and sending.
        learner_seconds: Seconds of learning since the last reset to 0.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        env_runner_group: EnvRunnerGroup,
        learner_group: LearnerGroup,
        log: SamplingLog,
        *,
        samples_blocks: bool,
        shares_weights: bool,
    ):
        self.timers = Timers()
        self.learner_seconds = 0.0
        self._config = config
        self._group = env_runner_group
        self._learner_group = learner_group
        self._learner = learner_group.local_learner
        self._log = log
        self._samples_blocks = samples_blocks
        local = env_runner_group.local_env_runner if samples_blocks and not config.num_sampling_actors else None
        self._sampler = cast("HostEnvRunner | None", local)
        self._shares_weights = shares_weights and local is not None and self._learner is not None
        self._learned: list[dict[str, Any]] = []
        self._learned_from_rows = False
        # Trained steps of the iteration; the learner thread adds to them.
        self._trained: dict[str, Any] = {}
        self._trained_lock = threading.Lock()
        self._published = learner_group.num_updates
        self.forget_samples()

    def forget_samples(self) -> None:
        """Drops all unfinished sample requests, so that `collect` does not return their samples. Also drops the
        connector states that EnvRunners have reported.
        """
        self._connector_states: list[tuple[RecordingId, dict[str, Any]]] = []
        self._has_requested = False
        self._known: dict[str, Any] | None = None
        self._group.forget_requests()

    # ---------------------------------------------------------------------------------------------------- sampling

    def sample(self, state: TrainState, plan: SamplePlan) -> Sampled:
        started, timeout = time.perf_counter(), self._config.sample_timeout_s
        if not self._samples_blocks:
            counts_agents = self._config.count_steps_by == "agent_steps"
            blocks = sample_rounds(self._group, plan.at_least, counts_agents=counts_agents, timeout_seconds=timeout)
        elif self._sampler is not None and not self._learner_group.is_remote:
            share = self._share(plan)
            blocks = [self._sampler.sample_block(takes_metrics=False, **share) for _ in range(plan.num_shares)]
        else:
            blocks = self._group.sample(
                "sample_block",
                [self._share(plan)] * plan.num_shares,
                keep_remote=self._stays_remote(plan),
                timeout_seconds=timeout,
            )
        return Sampled(state, self._taken_in(blocks, started))

    def request(self, state: TrainState, plan: SamplePlan) -> TrainState:
        """Sends one request for a rollout to every EnvRunner actor below its limit of unfinished requests.

        The limit is ``max_requests_in_flight_per_env_runner``. A rollout has T steps of each of the actor's
        environments, or consists of whole episodes. An EnvRunner in this process samples in `collect` instead.
        """
        if not self._has_requested:
            self._has_requested = True
            if merges_env_runner_states(self._config) and self._group.num_remote_env_runners():
                self._known = ask_one(self._group, connector_state)
        func, share = self._request_of(plan)
        self._group.request(func, share, keep_remote=self._stays_remote(plan))
        return state

    def collect(
        self, state: TrainState, plan: SamplePlan, *, timeout_seconds: float, also: Sequence[Any] = ()
    ) -> Sampled:
        """Waits until an EnvRunner actor has finished a rollout, and returns the samples of all finished actors.

        `request` requests the rollouts. The wait also ends at the timeout. An EnvRunner in this process samples during
        this call instead. In both cases, returns no samples if `request` was not called before, or not since
        `forget_samples`. See `Place.collect`.

        Args:
            state, plan, timeout_seconds: See `Place.collect`.
            also: Ray references; the call also returns, possibly without samples, when one of these is ready.
        """
        if not self._has_requested:
            return Sampled(state, Experience())
        started = time.perf_counter()
        func, share = self._request_of(plan)
        keep_remote = self._stays_remote(plan)
        blocks = self._group.collect(func, share, keep_remote=keep_remote, timeout_seconds=timeout_seconds, also=also)
        return Sampled(state, self._taken_in(blocks, started))

    def _request_of(self, plan: SamplePlan) -> tuple[Any, dict[str, Any]]:
        return ("sample_block", self._share(plan)) if self._samples_blocks else (sample_once, {})

    def _share(self, plan: SamplePlan) -> dict[str, Any]:
        """Returns the arguments of `HostEnvRunner.sample_block` for one rollout, such as the number of steps and the
        array layouts, copied from the sampling plan `plan`.
        """
        share = {"num_steps": plan.num_steps, "layouts": plan.layouts, "keeps_all_final_obs": plan.has_all_final_obs}
        # Left out otherwise: EnvRunners of users need not know of it.
        return share | ({"keeps_times": True} if plan.has_agent_times else {})

    def _stays_remote(self, plan: SamplePlan) -> bool:
        is_sent_on = self._learner_group.is_remote or self._config.num_aggregator_actors_per_learner
        return bool(plan.may_stay_remote and self._samples_blocks and is_sent_on)

    def _taken_in(self, blocks: Sequence[SampleBlock], started: float) -> Experience:
        """Combines the samples `blocks`, which EnvRunners returned, into one `Experience` (sampled steps).

        Also adds the samples' statistics to the `SamplingLog`, stores the EnvRunners' connector states, and adds the
        seconds since `started` to the sampling timer.
        """
        group = self._group
        if self._samples_blocks:
            states = [(block.part.source, block.report.connector_state) for block in blocks]
            self._connector_states += [(source, state) for source, state in states if state is not None]
        elif merges_env_runner_states(self._config):
            # Runners that give episodes have not sent theirs along.
            is_local = group.num_remote_env_runners() == 0
            states = group.foreach_env_runner(connector_state, local_env_runner=is_local)
            self._connector_states = [(RecordingId(i), state) for i, state in enumerate(states) if state]
        self._log.add(blocks)
        self.timers.since(ENV_RUNNER_SAMPLING_TIMER, started)
        return Experience(tuple(block.part for block in blocks))

    def has_sampled(self, num_steps: int) -> bool:
        counts_agents = self._config.is_multi_agent and self._config.count_steps_by == "agent_steps"
        sampled = sum(self._log.num_agent_steps.values()) if counts_agents else self._log.num_env_steps
        return sampled >= num_steps

    # ---------------------------------------------------------------------------------------------------- learning

    def num_updates(self, state: TrainState) -> int:
        return self._learner_group.num_updates

    def num_env_steps(self, state: TrainState) -> int:
        return self._log.num_env_steps

    def count_env_steps(self, state: TrainState, number: int) -> TrainState:
        self._log.num_env_steps += number
        return state

    def update(
        self, state: TrainState, experience: Experience, plan: SampledUpdate[Mapping[str, Any]]
    ) -> tuple[TrainState, Any]:
        started = time.perf_counter()
        timesteps, sizes = self.timesteps, plan.sizes
        if experience.has_episodes:
            episodes = episodes_of_agents(experience.episodes)
            if not self._can_learn_from(episodes):
                self._learned = []
                return state, self._learned
            metrics = self._learner_group.update(episodes=episodes, timesteps=timesteps, **sizes)
        elif self._learner is not None:
            metrics = [self._learner.update_block(experience, timesteps=timesteps, **sizes)]
        else:
            metrics = self._learner_group.update_block(experience, timesteps=timesteps, **sizes)
        self.note_update(metrics)
        self._note_learning(started)
        return state, self._learned

    @property
    def timesteps(self) -> dict[str, int]:
        """Lifetime number of sampled env steps, ``{"num_env_steps_sampled_lifetime": number}``: the dict that a
        learner's update receives as the argument `timesteps`.
        """
        return {"num_env_steps_sampled_lifetime": self._log.num_env_steps}

    def note_update(self, metrics: list[dict[str, Any]]) -> None:
        """Stores the results of one update, one dict for each learner.

        `learner_results` reports the results of the last update, and the sums of the counters of trained steps over the
        updates of the iteration.
        """
        self._learned, self._learned_from_rows = metrics, False
        with self._trained_lock:
            for own in metrics:
                _add_trained_steps(self._trained, own)

    def note_lag(self, num_updates: float) -> None:
        """Stores the policy lag of the last update: the number of updates between the weights that sampled its batch
        and the weights from which the update started.
        """
        for metrics in self._learned:
            for module_id in metrics.keys() - {ALL_MODULES}:
                metrics[module_id][DIFF_NUM_GRAD_UPDATES_VS_SAMPLER_POLICY] = num_updates

    def _can_learn_from(self, episodes: Sequence[SingleAgentEpisode]) -> bool:
        """Whether `episodes` contain steps from which an update can learn.

        With a single agent, always True. With several agents, True if a step belongs to a trained module; if
        `policies_to_train` is a function, every module counts as trained.
        """
        modules = self._config.policies_to_train
        trained = None if modules is None or callable(modules) else modules
        return not self._config.is_multi_agent or any(
            len(episode) and (trained is None or episode.module_id in trained) for episode in episodes
        )

    def update_rows(self, state: TrainState, rows: Experience) -> tuple[TrainState, Any, Mapping[Any, Any]]:
        """Makes one gradient step on a batch of N rows, ``[N, ...]``. Metrics stay on the device until they are
        reported.
        """
        started = time.perf_counter()
        learner = self._learner or self._learner_group
        logged = learner.update_rows(rows, timesteps=self._log.num_env_steps)
        self._learned_from_rows = True
        self._note_learning(started)
        return state, None, logged

    def _note_learning(self, started: float) -> None:
        self.learner_seconds += self.timers.since(LEARNER_UPDATE_TIMER, started) - started

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        """Metrics of the last update, and counters of the steps that were trained in the iteration; see
        `Driver.learner_results`.
        """
        if self._learned_from_rows:
            has_updates = self._learner_group.num_updates > 0
            return mean_results(self._learner_group.row_results(num_updates)) if has_updates else {}
        results: dict[str, Any] = {}
        if self._learned:
            merge_nested(results, mean_results(self._learned))
            # The last update can be one of an earlier iteration.
            _clear_trained_steps(results)
        with self._trained_lock:
            merge_nested(results, self._trained)
        return results

    def forget_trained_steps(self) -> None:
        """Sets the counters of trained steps in `learner_results` to 0, at the start of an iteration."""
        with self._trained_lock:
            self._trained = {}

    # -------------------------------------------------------------------------------------------------- publishing

    def publish(self, state: TrainState) -> TrainState:
        """Sends new weights and merged connector states to the runners; sends nothing if nothing is new."""
        if self._learner_group.num_updates != self._published or self._connector_states:
            self._sync(self._take_connector_states())
        return state

    def publish_weights(self, weights: Mapping[str, Any]) -> None:
        """Sends `weights` and the merged connector states to the EnvRunners.

        `weights` is a copy from the end of an earlier update; the learners may already have made further updates.

        Args:
            weights: See `weights_for_runners`.
        """
        self._sync(self._take_connector_states(), weights)

    def _take_connector_states(self) -> list[dict[str, Any]]:
        """Returns the connector states that EnvRunners have reported, and clears the list of reports.

        If each report contains only the changes since the runner's previous report, returns all reports; otherwise
        returns the newest report of each EnvRunner.
        """
        states, self._connector_states = self._connector_states, []
        return newest_connector_states(states) if self._known is None else [state for _, state in states]

    def known_connectors(self) -> dict[str, Any] | None:
        """Returns the state of the env-to-module pipeline, merged from the reports of all EnvRunner actors.

        Returns None if `request` was not called since `forget_samples`, if there are no EnvRunner actors, or if the
        config does not merge the actors' states. `HostDriver.env_to_module_state` then reads the state from a runner.
        """
        if self._known is not None and self._connector_states:
            self._known = self._group.merge_connector_states(self._take_connector_states(), known=self._known)
        return self._known

    def _sync(self, connector_states: list[dict[str, Any]], weights: Mapping[str, Any] | None = None) -> None:
        """Sends `weights` (by default the learners' newest weights) to all EnvRunners.

        If ``merge_env_runner_states`` is set, first merges `connector_states`, the states that EnvRunners have
        reported. If ``broadcast_env_runner_states`` is also set, sends the merged state in the same message as the
        weights.
        """
        started = time.perf_counter()
        merged = None
        if connector_states and merges_env_runner_states(self._config):
            runner = cast("HostEnvRunner | None", self._group.local_env_runner)
            if runner is not None and not self._config.num_sampling_actors:
                # Its statistics are all there are: nothing to add up.
                runner.merge_connector_deltas()
            else:
                merged = self._group.merge_connector_states(connector_states, known=self._known)
                self._known = None if self._known is None else merged
                if not self._config.broadcast_env_runner_states:
                    if runner is not None:
                        runner.set_state({core.COMPONENT_ENV_TO_MODULE_CONNECTOR: merged})
                    merged = None
        started = self.timers.since("synch_env_connectors", started)
        self.sync_weights(merged, weights)
        self.timers.since("synch_weights", started)

    def sync_weights(
        self, connector_state: dict[str, Any] | None = None, weights: Mapping[str, Any] | None = None
    ) -> None:
        """Sends `weights`, by default the learners' present weights, to all EnvRunners. If `connector_state` is given,
        also sends it as the state of the env-to-module pipelines.
        """
        # An update that runs in a thread has taken over the arrays that hold the number of updates.
        self._published = self._learner_group.num_updates if weights is None else weights["weights_seq_no"]
        num_env_steps = self._log.num_env_steps
        if self._shares_weights and connector_state is None:
            assert self._sampler is not None and self._learner is not None
            self._sampler.share_weights(self._learner, num_env_steps_sampled_lifetime=num_env_steps)
            return
        send_weights(self._group, self._learner_group, num_env_steps, connector_state, weights)

    # ------------------------------------------------------------------------------------------------------ others

    def timed(self, timer: str, function: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        result = function(*args)
        self.timers.since(timer, started)
        return result

    def results(self) -> dict[str, Any]:
        """Returns the metrics of the EnvRunners and the timers of the iteration, ``{"env_runners": metrics, "timers":
        timers}``.
        """
        if self._sampler is not None:
            self._log.metrics.aggregate([self._sampler.take_metrics()])
        sampling: dict[str, Any] = {}
        merge_nested(sampling, COMPILED_PIPELINES)
        merge_nested(sampling, self._log.metrics.compile())
        return {"env_runners": sampling, "timers": dict(self.timers)}


def send_weights(
    group: EnvRunnerGroup,
    learner_group: LearnerGroup,
    num_env_steps: int,
    connector_state: dict[str, Any] | None,
    weights: Mapping[str, Any] | None = None,
) -> None:
    """Sends weights and the number of env steps to all EnvRunners of a group.

    If `connector_state` is given, also sends it as the state of the env-to-module pipelines.

    `weights` has the form of `weights_for_runners`; by default the learners' present ones are sent.
    """
    more: dict[str, Any] = {"num_env_steps_sampled_lifetime": num_env_steps}
    if connector_state:
        more[core.COMPONENT_ENV_TO_MODULE_CONNECTOR] = connector_state
    given: dict[str, Any] = {}
    if weights is not None:
        given = {"weights": weights["rl_module"], "weights_seq_no": weights["weights_seq_no"], "with_requests": True}
    group.sync_weights(from_worker_or_learner_group=learner_group, more_state=more, **given)


def connector_state(runner: Any) -> dict[str, Any]:
    """Returns the state of an EnvRunner's env-to-module pipeline, ``{connector name: connector state}``."""
    return runner.get_state(core.COMPONENT_ENV_TO_MODULE_CONNECTOR)[core.COMPONENT_ENV_TO_MODULE_CONNECTOR]


def _add_trained_steps(totals: dict[str, Any], metrics: Mapping[str, Any]) -> None:
    """Adds the counters of trained steps in a learner's nested metrics to `totals`, in place."""
    for name, value in metrics.items():
        if isinstance(value, dict):
            _add_trained_steps(totals.setdefault(name, {}), value)
        elif _counts_trained_steps(name):
            totals[name] = totals.get(name, 0) + value


def _clear_trained_steps(metrics: dict[str, Any]) -> None:
    """Sets the counters of trained steps in nested metrics to 0, in place."""
    for name, value in metrics.items():
        if isinstance(value, dict):
            _clear_trained_steps(value)
        elif _counts_trained_steps(name):
            metrics[name] = 0


def _counts_trained_steps(name: str) -> bool:
    return adds_up(name) and not name.endswith("_lifetime")


def mean_results(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combines the metrics of several learners into one dict with the same nested keys: sums counters of trained or
    evaluated steps, and averages all other numbers.
    """
    if len(results) == 1:
        return results[0]
    out: dict[str, Any] = {}
    for key in dict.fromkeys(name for result in results for name in result):
        values = [result[key] for result in results if key in result]
        if isinstance(values[0], dict):
            out[key] = mean_results(values)
        elif adds_up(key):
            out[key] = sum(values)
        else:
            out[key] = float(np.mean(values))
    return out
