"""User-defined conversion of data set rows to episodes before training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.acting.steps_of_episodes import steps_of
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets import table_view
from jaxrl_stack.datasets.episode_order import JumbledRows, order_of
from jaxrl_stack.datasets.item_form import ItemForm
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

SCHEMA = {
    name: name
    for name in (
        *(Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS),
        *(Columns.INFOS, Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.T),
    )
}
"""``{column: its name in a batch of rows}``, unless `offline_data(input_read_schema=...)` has another one."""
_NO_OUTPUTS = {"dones", "agent_index", "type"}


class OfflinePreLearner:
    """Converts batches of data set rows to episodes for training. A user-defined subclass, set by
    `offline_data(prelearner_class=...)`, can change all data in the episodes.

    It does not run the learner connector pipeline, which runs with every update, where the weights are.

    Args:
        config: The algorithm's config.
        spaces: The module's observation and action space.
        module_state: State of the module; not used here.
        **kwargs: Likewise.

    Attributes:
        config, observation_space, action_space: The constructor arguments.
        default_prelearner_buffer_class: Class of the episode buffer if `offline_data(prelearner_buffer_class=...)` is
            not set; None: training uses all episodes.
        episode_buffer: Buffer of one of these classes, from which episodes are sampled; None without a class.
    """

    default_prelearner_buffer_class: Any = None
    episode_buffer: Any = None

    def __init__(
        self,
        *,
        config: AlgorithmConfig,
        spaces: tuple[gym.Space, gym.Space] | None = None,
        module_state: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        self.config: Any = config
        self.observation_space, self.action_space = spaces or (None, None)
        buffer_class = self.config.prelearner_buffer_class or self.default_prelearner_buffer_class
        if buffer_class is not None:
            batch_size = self.config.train_batch_size_per_learner
            own = {"capacity": 10 * batch_size, "batch_size_B": batch_size, **self.config.prelearner_buffer_kwargs}
            self.episode_buffer = buffer_class(**own)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Converts a batch of rows to a learner's train batch, ``{"module_id/column": [N, ...]}``.

        Args:
            batch: ``{column: [N, ...]}``, one row per step, by the names in the data.
        """
        steps = self.steps(batch)
        items = ItemForm(tuple(steps.columns))
        columns = {DEFAULT_MODULE_ID: items.take(steps.columns, {}, items.of(steps), np)}
        return {
            f"{mid}/{name}": column
            for mid, own in columns.items()
            if self._should_module_be_updated(mid, columns)
            for name, column in own.items()
        }

    def steps(self, batch: Mapping[str, Any]) -> Steps:
        """Converts a batch of table rows to episodes, selects the episodes to train on with `_postprocess_and_sample`,
        and returns the steps of the selected episodes.

        Raises:
            ValueError: If no episode comes of it.
        """
        if self.config.input_read_sample_batches:
            episodes = self._map_sample_batch_to_episode(batch, to_numpy=True)["episodes"]
        else:
            episodes = self._map_to_episodes(batch, to_numpy=True)["episodes"]
        episodes = [episode for episode in self._postprocess_and_sample(episodes) if len(episode)]
        if not episodes:
            raise ValueError(
                f"{type(self).__name__} returned no episode for a batch of rows. Return at least one episode."
            )
        return Steps.concatenated([steps_of(episode) for episode in episodes])

    # ------------------------------------------------------------------------------------------------ to be overridden

    def _map_to_episodes(self, batch: Mapping[str, Any], to_numpy: bool = False, **kwargs: Any) -> dict[str, list[Any]]:
        """Converts a batch of rows to episodes: rows with the same ``eps_id``, ordered by ``t`` if present.

        Args:
            batch: ``{column: [N, ...]}``, one row per step, by the names in the data.
            to_numpy: Whether episodes hold arrays.
            **kwargs: For overrides.

        Returns:
            ``{"episodes": [SingleAgentEpisode, ...]}``.
        """
        columns = _in_order(self._by_column(batch))
        outputs = columns.keys() - SCHEMA.keys() - _NO_OUTPUTS
        episodes = []
        for rows in _runs(columns):
            own = {name: jax.tree.map(lambda x, rows=rows: x[rows], column) for name, column in columns.items()}
            episodes.append(_episode(own, outputs, to_numpy=to_numpy))
        return {"episodes": episodes}

    def _map_sample_batch_to_episode(
        self, batch: Mapping[str, Any], to_numpy: bool = False, **kwargs: Any
    ) -> dict[str, list[Any]]:
        """Converts a batch of old RLlib data (SampleBatch), one step per row, to episodes. It is called in place of
        `_map_to_episodes` if `offline_data(input_read_sample_batches=True)` is set.
        """
        return self._map_to_episodes(batch, to_numpy=to_numpy, **kwargs)

    def _postprocess_and_sample(self, episodes: list[Any]) -> list[Any]:
        """Selects the episodes to train on.

        If `episode_buffer` is None, returns `episodes` without duplicates. Otherwise, adds `episodes` without
        duplicates to this buffer, and returns a sample of episodes from the buffer.
        """
        if self.episode_buffer is None:
            return self._validate_episodes(episodes)
        self.episode_buffer.add(self._validate_episodes(episodes))
        return self.episode_buffer.sample(
            num_items=self.config.train_batch_size_per_learner, sample_episodes=True, to_numpy=True
        )

    def _validate_episodes(self, episodes: Sequence[Any]) -> list[Any]:
        """Removes duplicates: episodes with the same id, first time step, observations, actions and rewards.

        Parts of an episode have one id, and so may other episodes: files of other programs count from 0 each.
        """
        found = {}
        for episode in episodes:
            content = (episode.get_observations(), episode.get_actions(), episode.get_rewards())
            numbers = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(content))
            found[episode.id_, episode.t_started, numbers] = episode
        return list(found.values())

    def _should_module_be_updated(self, module_id: str, multi_agent_batch: Any = None) -> bool:
        """Whether `multi_agent(policies_to_train=...)` includes the module."""
        trained = self.config.policies_to_train
        if trained is None:
            return True
        return bool(trained(module_id, multi_agent_batch)) if callable(trained) else module_id in trained

    def _by_column(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Renames the columns of a batch from the data's names to this package's names."""
        names = {own: name for name, own in (SCHEMA | self.config.input_read_schema).items()}
        return {names.get(name, name): column for name, column in batch.items()}


def rows_of(steps: Steps, schema: Mapping[str, str]) -> dict[str, Any]:
    """Converts recorded steps to a batch of table rows, with next observations and episode ids; `schema` renames the
    columns.
    """
    return {schema.get(name, name): column for name, column in table_view.rows_of(steps).items()}


def _in_order(columns: dict[str, Any]) -> dict[str, Any]:
    """Sorts rows by episode, and the rows of an episode by `t`.

    The episodes are in the order of their first rows. If the column `t` is missing, the rows of an episode keep their
    order. If episode ids are missing, returns the rows unchanged.

    Raises:
        ValueError: An id is used for several episodes, whose rows are not in order.
    """
    if Columns.EPS_ID not in columns:
        return columns
    _, first, codes = np.unique(np.asarray(columns[Columns.EPS_ID]), return_index=True, return_inverse=True)
    ids = np.argsort(np.argsort(first))[codes]
    nothing = np.zeros(len(ids), np.int64)
    ended = nothing.astype(bool)
    for name in _ENDS:
        ended = ended | np.asarray(columns.get(name, nothing)).astype(bool)
    t = np.asarray(columns[Columns.T]).astype(np.int64) if Columns.T in columns else None
    try:
        rows, _ = order_of(ids, t, ended, nothing, None)
    except JumbledRows as error:
        name = columns[Columns.EPS_ID][error.row]
        raise ValueError(
            f"Several episodes have the eps_id {name!r}, and their rows are mixed: one of these rows neither continues "
            "the row before it nor begins an episode. Give each episode a unique id."
        ) from error
    return (
        columns
        if rows is None
        else {name: jax.tree.map(lambda x: np.asarray(x)[rows], x) for name, x in columns.items()}
    )


_ENDS = (Columns.TERMINATEDS, Columns.TRUNCATEDS, "dones")


def _runs(columns: Mapping[str, Any]) -> Iterator[slice]:
    """Yields slices of consecutive rows that belong to the same episode and have no step missing in between."""
    num_rows = len(jax.tree.leaves(columns[Columns.OBS])[0])
    starts = np.ones(num_rows + 1, bool)
    if Columns.EPS_ID in columns:
        ids = np.asarray(columns[Columns.EPS_ID])
        over = np.zeros(num_rows, bool)
        for name in _ENDS:
            over |= np.asarray(columns.get(name, over)).astype(bool)
        starts[1:-1] = (ids[1:] != ids[:-1]) | over[:-1]
        if Columns.T in columns:
            starts[1:-1] |= np.diff(np.asarray(columns[Columns.T])) != 1
    at = np.flatnonzero(starts)
    return (slice(int(first), int(last)) for first, last in itertools.pairwise(at))


def _episode(columns: Mapping[str, Any], outputs: Any, *, to_numpy: bool) -> SingleAgentEpisode:
    obs, following = columns[Columns.OBS], columns.get(Columns.NEXT_OBS)
    length = len(jax.tree.leaves(obs)[0])
    last = jax.tree.map(np.zeros_like, obs) if following is None else following
    observations = [jax.tree.map(lambda x, i=i: x[i], obs) for i in range(length)]
    observations.append(jax.tree.map(lambda x: x[-1], last))
    over = columns.get(Columns.TERMINATEDS, columns.get("dones", [False]))
    episode = SingleAgentEpisode(
        id_=str(columns[Columns.EPS_ID][0]) if Columns.EPS_ID in columns else None,
        observations=observations,
        actions=[jax.tree.map(lambda x, i=i: x[i], columns[Columns.ACTIONS]) for i in range(length)],
        rewards=[float(reward) for reward in columns[Columns.REWARDS]],
        terminated=bool(over[-1]),
        truncated=bool(columns.get(Columns.TRUNCATEDS, [False])[-1]),
        extra_model_outputs={
            name: [jax.tree.map(lambda x, i=i: x[i], columns[name]) for i in range(length)] for name in outputs
        },
        t_started=int(columns[Columns.T][0]) if Columns.T in columns else 0,
        len_lookback_buffer=0,
    )
    return episode.to_numpy() if to_numpy else episode
