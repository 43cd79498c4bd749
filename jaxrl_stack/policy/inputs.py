"""Checks of the observations, rewards and reset flags passed to policies and exported programs."""

from __future__ import annotations

import abc
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.policy.playing import made, play
from jaxrl_stack.utils.action_masks import allows_an_action, mask_key_of, note_mask_that_allows_nothing
from jaxrl_stack.utils.closing import close_env
from jaxrl_stack.utils.integers import choices_of, outside_of
from jaxrl_stack.utils.nested import blank_item, space_struct
from jaxrl_stack.utils.spaces import dtype_of, map_parts, shape_dtype_struct, validate_batch
from jaxrl_stack.utils.spaces.boxes import members_of
from jaxrl_stack.utils.streams import Stream, stream_key
from jaxrl_stack.videos.encoding import checked_path
from jaxrl_stack.videos.episodes import check_num_episodes
from jaxrl_stack.videos.video import Video, make_video


class ActingState(Protocol):
    """Interface of a policy's state between the steps of unfinished episodes."""

    @property
    def num_envs(self) -> int:
        """Number of environments in this policy state, which describes the unfinished episode of each environment."""
        ...


State = TypeVar("State", bound=ActingState)


class Given(NamedTuple):
    """Checked arguments of `Acting.compute_actions`, NumPy arrays ``[B, ...]``, and a PRNG key.

    The number `count` is folded into the key. If the caller passed a key, `count` is 0; otherwise, it is the number of
    calls without a key so far, so that each of these calls uses different random numbers.
    """

    observations: Any
    prev_rewards: np.ndarray
    reset: np.ndarray
    key: jax.Array
    count: np.uint32


class Acting(abc.ABC, Generic[State]):
    """Base class of policies that compute actions for batches of observations, or for single observations.

    Attributes:
        observation_space: Space of the environment's observations.
        action_space: Space of the environment's actions.
    """

    observation_space: gym.Space
    action_space: gym.Space

    def __init__(self, seed: int):
        # `next` on it is one step of the interpreter: threads never get the same number.
        self._calls = itertools.count(1)
        self._key = stream_key(seed, Stream.SERVED_POLICY)

    def initial_state(self, num_envs: int | None = None) -> State:
        """Returns the policy's state before the first observations of its episodes.

        Args:
            num_envs: Number of environments to act for; None for one.

        Raises:
            ValueError: If the policy cannot act for this number of environments.
        """
        num_envs = 1 if num_envs is None else num_envs
        self._check_num_envs(num_envs)
        return self._initial_state(num_envs)

    @abc.abstractmethod
    def _initial_state(self, num_envs: int) -> State: ...

    @property
    def unread_observations(self) -> list[str]:
        """Observation keys that do not influence the policy's actions; callers of `compute_actions` may omit them.

        ``["privileged_state"]``, for example, if only the value function sees this key
        (``model_config={"policy_obs_key": "state", ...}``). Nested keys are joined by ``"/"``. The list is empty if the
        policy has host connectors, which may read every key.
        """
        return []

    @property
    def _host_connectors(self) -> list[str]:
        """Names of the env-to-module connectors that run on the host and read episodes."""
        return []

    def compute_actions(
        self,
        observations: Any,
        state: State | None = None,
        *,
        prev_rewards: Any = None,
        reset: Any = None,
        explore: bool | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Any, State, dict[str, Any]]:
        """Computes actions for a batch of environments.

        One program is compiled per batch size and value of `explore`.

        Args:
            observations: ``[B, ...]``, as the environments return them; keys of `unread_observations` are optional.
            state: Returned by the last call, for the same environments; None if all of these observations are the
                first of their episodes.
            prev_rewards: ``[B]``, the rewards that came with these observations; None for zeros. Only some connectors
                use them, and never at the start of an episode.
            reset: bool ``[B]``, which observations are the first of their episodes; None for the first call's.
            explore: True: sample actions; False and None: take the greedy ones. In an exported policy the value is
                fixed; None takes it.
            key: PRNG key; None takes the next one of the policy's own.

        Returns:
            ``(actions, state, outputs)``: the environments' actions, NumPy ``[B, ...]``; the state for the next call;
            all other columns after the module-to-env pipeline, NumPy.

        Raises:
            ValueError: If an argument does not fit the observation space or the number of environments, an observation
                is NaN or infinite, or a policy was exported with another `explore`.
        """
        observations = checked_observations(self.observation_space, self._completed(observations, 1), 1)
        key_of_mask = mask_key_of(self.observation_space, self.action_space)
        if key_of_mask is not None and not allows_an_action(self.action_space, observations[key_of_mask] > 0).all():
            note_mask_that_allows_nothing()
        num_envs = jax.tree.leaves(observations)[0].shape[0]
        self._check_num_envs(num_envs)
        if state is None:
            state = self.initial_state(num_envs)
        elif state.num_envs != num_envs:
            raise ValueError(
                f"compute_actions() got {num_envs} observation(s) and a state of {state.num_envs} environment(s): "
                f"pass one observation per environment, or start new episodes: state=policy.initial_state({num_envs})."
            )
        rewards = checked_rows("prev_rewards", prev_rewards, num_envs, np.float32)
        resets = checked_rows("reset", reset, num_envs, bool)
        key, count = (self._key, next(self._calls)) if key is None else (_as_key(key), 0)
        given = Given(observations, rewards, resets, key, np.uint32(count & 0xFFFFFFFF))
        actions, state, outputs = self._act(state, given, explore)
        return self._as_members(actions), state, outputs

    def _completed(self, observations: Any, batch_dims: int) -> Any:
        """Adds zeros for missing observation keys that do not influence actions."""
        missing = _missing_key(self.observation_space, observations)
        if missing is None:
            return observations
        if self._host_connectors:
            raise ValueError(
                f"The observation has no key {missing!r}. Add it: the host connectors {self._host_connectors} of this "
                "policy (connectors that override `__call__`) may read every key."
            )
        given = _as_arrays_of_given_keys(self.observation_space, observations)
        leaves = jax.tree.leaves(given)
        if not leaves or not self.unread_observations:
            return observations
        return _with_zeros(self.observation_space, given, self.unread_observations, np.shape(leaves[0])[:batch_dims])

    @functools.cached_property
    def _as_members(self) -> Callable[[Any], Any]:
        """Function that converts actions to the dtypes of the environment's action space.

        `Box` actions, also inside of nested spaces, become NumPy arrays; other actions do not change. See `members_of`.
        """
        return members_of(self.action_space)

    @abc.abstractmethod
    def _act(self, state: State, given: Given, explore: bool | None) -> tuple[Any, State, dict[str, Any]]:
        """Computes actions for checked arguments; see `compute_actions`."""

    def compute_single_action(
        self,
        observation: Any,
        state: State | None = None,
        *,
        prev_reward: float = 0.0,
        explore: bool | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Any, State, dict[str, Any]]:
        """Computes the action for one environment; see `compute_actions`.

        Args:
            observation: Without batch axis; keys of `unread_observations` are optional.
            state: Returned by the last call; None at the first observation of an episode.
            prev_reward: The reward that came with the observation.
            explore: As for `compute_actions`.
            key: PRNG key; None takes the next one of the policy's own.

        Returns:
            ``(action, state, outputs)``, action and outputs without batch axis.

        Raises:
            ValueError: If the observation does not fit the observation space, or is NaN or infinite.
        """
        observation = checked_observations(self.observation_space, self._completed(observation, 0), 0)
        actions, state, outputs = self.compute_actions(
            jax.tree.map(lambda x: x[None], observation),
            state,
            prev_rewards=np.array([prev_reward], np.float32),
            explore=explore,
            key=key,
        )
        action, outputs = jax.tree.map(lambda x: x[0], (actions, outputs))
        return self._as_members(action), state, outputs

    def record(
        self,
        path: str | os.PathLike[str],
        env: Any,
        episodes: int = 1,
        *,
        seed: int = 0,
        explore: bool | None = None,
        fps: float | None = None,
    ) -> Video:
        """Records a video of episodes in which this policy acts.

        ``algorithm.record`` shows the episodes of an evaluation, in the environments of its config.

        Args:
            path: Ends in .mp4, .webm or .gif; see `write_video`.
            env: A `gymnasium.Env` with ``render_mode="rgb_array"`` (`GymnasiumFromJax` for a JAX environment), or a
                gymnasium id.
            episodes: Number of episodes, one after the other.
            seed: Seed of the first reset, and of sampled actions.
            explore: As for `compute_actions`.
            fps: Frames per second; None for the environment's own.

        Returns:
            The `Video`, which a notebook shows as a player; its `path` is the file.

        Raises:
            ValueError: The environment gives no frames, or does not fit; or for another ending of `path`.
        """
        checked_path(path)
        check_num_episodes(episodes)
        env, is_own = made(env)
        try:
            fps = float(env.metadata.get("render_fps") or 30.0) if fps is None else fps
            return make_video(play(self, env, episodes, seed=seed, explore=explore), path, fps)
        finally:
            if is_own:
                close_env(env)

    def _check_num_envs(self, num_envs: int) -> None:
        """Raises ValueError if the policy cannot act for this number of environments, such as 0."""
        if num_envs < 1:
            raise ValueError(f"initial_state(num_envs={num_envs}): must be at least 1.")


def checked_observations(space: gym.Space, observations: Any, batch_dims: int) -> Any:
    """Checks observations (arrays or lists of numbers), and converts them to NumPy arrays with the dtypes that JAX uses
    for the space.

    Args:
        space: The environment's observation space.
        observations: Observations as the caller passed them.
        batch_dims: 1 for a batch ``[B, ...]``, 0 for one observation.

    Raises:
        ValueError: If structure, shape or dtype do not fit the space, or the batch is empty; names the space. If a
            number is NaN or infinite; names its index.
    """
    name = "observations" if batch_dims else "observation"
    match observations:
        case (_, dict()) if isinstance(observations, tuple) and not isinstance(space, gym.spaces.Tuple):
            raise ValueError(
                f"{name} is the tuple that reset() returns, {_described(observations)}. Pass only the observation: "
                "obs, info = env.reset()."
            )
    try:
        arrays = _as_arrays(space, observations)
        batch_shape = validate_batch(space, arrays, batch_dims=batch_dims, name=name)
    except (TypeError, ValueError) as error:
        wanted = f"batches [B, ...] of {space}" if batch_dims else f"elements of {space}"
        raise ValueError(f"{error} The policy takes {wanted}, got {_described(observations)}.") from error
    if batch_shape == (0,):
        raise ValueError("The batch of observations is empty: pass at least one row.")
    _check_integers(space, arrays, name)
    arrays = jax.tree.map(lambda dtype, leaf: np.asarray(leaf, dtype), dtype_of(space), arrays)
    for path, leaf in jax.tree.leaves_with_path(arrays):
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            index = tuple(np.argwhere(~np.isfinite(leaf))[0].tolist())
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)}{list(index) if index else ''} is {leaf[index]}: a policy cannot "
                f"act on it. Repair the environment, or replace such values before the call: np.nan_to_num(...)."
            )
    return arrays


def _missing_key(space: gym.Space, observations: Any) -> str | None:
    """Returns the path of the first key that `space` (a `Dict` space) has and the dict of observations lacks.

    The key can be at any depth; an example is "camera/image". Returns None if no key is missing.
    """
    if not isinstance(space, gym.spaces.Dict) or not isinstance(observations, Mapping):
        return None
    for key, part in space.spaces.items():
        if key not in observations:
            return key
        inner = _missing_key(part, observations[key])
        if inner is not None:
            return f"{key}/{inner}"
    return None


def _as_arrays_of_given_keys(space: gym.Space, observations: Any) -> Any:
    """Converts lists of numbers in observations to arrays (see `_as_arrays`), even if observation keys are missing."""
    if _missing_key(space, observations) is None:
        return _as_arrays(space, observations)
    parts = space.spaces  # type: ignore[attr-defined]
    return {
        key: _as_arrays_of_given_keys(parts[key], value) if key in parts else value
        for key, value in observations.items()
    }


def _with_zeros(
    space: gym.Space, observations: Any, unread: Sequence[str], batch_shape: tuple[int, ...], prefix: str = ""
) -> Any:
    """Adds zeros for missing observation keys that do not influence actions.

    Args:
        space: The environment's observation space.
        observations: Result of `_as_arrays_of_given_keys`.
        unread: Names of `Acting.unread_observations`.
        batch_shape: Leading axes of the observations.
        prefix: Names of the keys above, each with ``"/"`` after it.

    Raises:
        ValueError: If a key is missing that is read.
    """
    if _missing_key(space, observations) is None:
        return observations
    assert isinstance(space, gym.spaces.Dict)
    completed = dict(observations)
    for key, part in space.spaces.items():
        name = prefix + key
        if key in observations:
            completed[key] = _with_zeros(part, observations[key], unread, batch_shape, f"{name}/")
            continue
        leaves = [
            jax.tree_util.keystr(path, simple=True, separator="/")
            for path, _ in jax.tree.leaves_with_path(shape_dtype_struct(part))
        ]
        if not all(f"{name}/{leaf}".rstrip("/") in unread for leaf in leaves):
            raise ValueError(
                f"The observation has no key {name!r}, which the policy reads. Add it; only {list(unread)} are "
                "optional."
            )
        blank = blank_item(space_struct(part))
        completed[key] = jax.tree.map(lambda x: np.broadcast_to(x, (*batch_shape, *x.shape)), blank)
    return completed


def _check_integers(space: gym.Space, arrays: Any, name: str) -> None:
    """Raises ValueError for integers that do not fit the dtype of their space.

    If the space is not a Box (for example Discrete), also raises ValueError for values outside of the space.
    """

    def check(part: gym.Space, array: np.ndarray) -> None:
        dtype: Any = dtype_of(part)
        if dtype.kind not in "iub":
            return
        bad = outside_of(dtype, array)
        if bad is not None:
            raise ValueError(
                f"{name} has the value {bad}, which does not fit the dtype {dtype} of its space {part}. Pass values of "
                "this dtype, or use an environment whose space is a Box of dtype np.float32."
            )
        if not isinstance(part, gym.spaces.Box):
            first, last = choices_of(part)  # type: ignore[arg-type]
            outside = (array < first) | (array > last)
            if outside.any():
                raise ValueError(
                    f"{name} has the value {array[outside].flat[0]}, outside of {part}. Pass a value of this space."
                )

    map_parts(check, space, arrays)


def checked_rows(name: str, values: Any, num_envs: int, dtype: Any) -> np.ndarray:
    """Checks an argument with one number or flag per environment, ``[B]``; None becomes zeros.

    Raises:
        ValueError: If it has another shape, or does not convert to `dtype`; names the argument.
    """
    if values is None:
        return np.zeros(num_envs, dtype)
    array = np.asarray(values)
    kinds = "b" if dtype is bool else "biuf"
    if array.shape != (num_envs,) or array.dtype.kind not in kinds:
        what = "bools" if dtype is bool else "numbers"
        raise ValueError(
            f"{name} is {array.dtype.name}{list(array.shape)}, but {num_envs} observation(s) need {what} of shape "
            f"[{num_envs}]. Pass one value per observation."
        )
    return array.astype(dtype)


def _as_key(key: jax.Array | np.ndarray) -> jax.Array:
    """Converts raw key data (uint32[2]) to a typed PRNG key; returns typed keys unchanged."""
    if isinstance(key, jax.Array) and jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    data: Any = np.asarray(key)
    if data.shape != (2,) or data.dtype != np.uint32:
        raise ValueError(f"key is {data.dtype.name}{list(data.shape)}; pass jax.random.key(seed).")
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _as_arrays(space: gym.Space, value: Any) -> Any:
    """Converts lists of numbers in observations to arrays, and mappings to dicts. A value whose structure differs from
    the structure of its space is returned unchanged.
    """
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            return value
        return {key: _as_arrays(sub, value[key]) for key, sub in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        if not isinstance(value, list | tuple) or len(value) != len(space.spaces):
            return value
        return tuple(_as_arrays(sub, part) for sub, part in zip(space.spaces, value, strict=True))
    return np.asarray(value) if not isinstance(value, Mapping | None) else value


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_described(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_described(part) for part in value) + ")"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]
