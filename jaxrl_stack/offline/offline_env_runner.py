"""Env runner that writes its samples to files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_stack.acting.episode_builder import WEIGHTS_SEQ_NO
from jaxrl_stack.acting.recording import Recording
from jaxrl_stack.acting.steps_builder import FINAL_INFOS
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.env.host_env_runner import HostEnvRunner
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.env.step_output import NO_OUTPUT, make_step_output
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.nested import owned


class OfflineSingleAgentEnvRunner(SingleAgentEnvRunner):
    """Env runner that writes every sampled step to files; ``offline_data(output=...)`` selects it.

    It records the steps that `sample` returns, and the steps that training samples as arrays. Recorded observations are
    the module's inputs; recorded actions are the module's actions, neither clipped nor rescaled.

    Args:
        config: The algorithm's config, with `output`.
        **kwargs: See `SingleAgentEnvRunner`.

    Raises:
        ValueError: Without `output`.
    """

    _keeps_all_of_steps = True

    def __init__(self, *, config: Any, **kwargs: Any):
        if not config.output:
            raise ValueError(
                f"{type(self).__name__} records steps, but offline_data(output={config.output!r}) names no folder. "
                "Set offline_data(output='folder'), or use SingleAgentEnvRunner."
            )
        self._output: Any = NO_OUTPUT
        self._last_infos: Sequence[dict] = ()
        super().__init__(config=config, **kwargs)

    def make_module(self) -> None:
        super().make_module()
        if self.env is not None:
            pipelines = self._connectors.pipelines.env_to_module
            self._output = make_step_output(self.config, self.worker_index, pipelines)

    def write_output(self, *, is_last: bool = False) -> None:
        self._output.flush(is_last=is_last)

    def _note_block(self, recording: Recording) -> None:
        super()._note_block(recording)
        columns = recording.columns()[self.module_id]
        shape = columns[Columns.REWARDS].shape
        columns[WEIGHTS_SEQ_NO] = np.full(shape, self.weights_seq_no)
        if self.config.output_write_infos:
            columns |= self._infos_of_block(shape, recording)
        self._output.add_block(columns)
        self._log_buffered()

    def _infos_of_block(self, shape: Any, recording: Recording) -> dict[str, Any]:
        """Returns two columns of infos, ``{column: object array [T, B]}``: the infos of the environments before each
        step of a rollout, and after each step.
        """
        infos = recording.infos
        after = np.empty(shape, object)
        for t, row in enumerate(infos):
            for i, info in enumerate(row):
                after[t, i] = info
        before = np.empty(shape, object)
        before[1:] = after[:-1]
        for i in range(shape[1]):
            before[0, i] = self._last_infos[i] if self._last_infos else {}
        for (t, i), info in recording.reset_infos.items():
            if t < len(before):
                before[t, i] = info
        self._last_infos = infos[-1]
        return {Columns.INFOS: before, FINAL_INFOS: after}

    def _note_episodes(self, episodes: Sequence[SingleAgentEpisode]) -> None:
        super()._note_episodes(episodes)
        self._output.add_episodes(episodes)
        self._log_buffered()

    def _log_buffered(self) -> None:
        self.metrics.log_value("recording_buffer_size", self._output.num_buffered_rows, reduce="item")

    def _forget_episodes(self) -> None:
        super()._forget_episodes()
        self._output.restart()
        self._last_infos = ()

    def _note_restored(self, lengths: np.ndarray, infos: Sequence[dict[str, Any]]) -> None:
        super()._note_restored(lengths, infos)
        self._output.restart(lengths)
        self._last_infos = owned(list(infos))

    def stop(self) -> None:
        try:
            self.write_output(is_last=True)
        finally:
            super().stop()


def host_runner_class(*, is_multi_agent: bool, records: bool) -> type[HostEnvRunner]:
    """Returns the default EnvRunner class for host environments (stepped in Python): multi-agent, single-agent, or
    single-agent with recording to files.
    """
    if is_multi_agent:
        return MultiAgentEnvRunner
    return OfflineSingleAgentEnvRunner if records else SingleAgentEnvRunner
