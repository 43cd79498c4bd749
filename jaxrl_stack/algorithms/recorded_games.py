"""Recorded games of a policy against another player, for videos."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.algorithms.games import GameTable, Player, code_of_env, load_player, policy_of
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.checkpoints.plain_data import code_named_by
from jaxrl_stack.env.watching import Seen, copied_entry, frames_and_note
from jaxrl_stack.policy.policy import Policy
from jaxrl_stack.utils.streams import Stream, named, stream_key
from jaxrl_stack.videos.episodes import RecordedEpisode

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm

_ONE_HERO = "multi_agent(policies_to_train=[{0!r}]), or run_tournament with algorithm.get_policy({0!r})"


def record_games(
    algorithm: Algorithm, against: Player, episodes: int, *, seed: int, seat: Any
) -> tuple[list[RecordedEpisode], float]:
    """Plays games of an algorithm's trained policy against another player, and records them for a video; see
    `Algorithm.record`.

    Args:
        algorithm: The algorithm, whose trained policy is the hero.
        against: Player that plays all other agents (the rivals).
        episodes: Number of games.
        seed: Seed of the games.
        seat: Agent of the game that the hero plays; None draws it for each game.

    Returns:
        ``(recorded games, frames per second of the environment)``.

    Raises:
        TypeError: If `against` is not a player.
        ValueError: If the environment is not a JAX game of agents with equal spaces, or the rival or the seat is
            unknown.
        TimeoutError: If the games do not end within ``evaluation_sample_timeout_s``.
    """
    called = f"record(against={short(against)})"
    config = algorithm.config.get_evaluation_config_object() or algorithm.config
    table = GameTable.of(called, config, episodes, explore=bool(config.explore))
    env, agents = table.env, table.seats
    if seat is not None and seat not in agents:
        raise ValueError(
            f"record(seat={seat!r}): the game has the agents {list(agents)}. Use one of these, or None to draw one for "
            "each game."
        )
    hero = policy_of(f"{called}: the algorithm", algorithm, _ONE_HERO)
    rival = _rival(called, algorithm, against)
    table.check(f"{called}: the policy", hero)
    table.check(f"{called}: the rival", rival)
    key = named(stream_key(config.root_seed, Stream.EVALUATION), "record")
    key = jax.random.fold_in(jax.random.fold_in(key, algorithm.iteration), seed)
    seats = None if seat is None else jnp.full(episodes, agents.index(seat), jnp.int32)
    games = [_Game() for _ in range(episodes)]
    timeout_s, started = config.evaluation_sample_timeout_s, time.monotonic()
    last_states = jax.jit(jax.vmap(lambda key, state, actions: env.last_state(key, state, actions, env.params)))
    for step in table.steps(hero, rival, key, seats):
        if timeout_s is not None and time.monotonic() - started > timeout_s:
            raise TimeoutError(
                f"{called}: {int(step.is_running.sum())} of {episodes} games did not end within "
                f"evaluation_sample_timeout_s={timeout_s}. Raise this setting, or record fewer episodes."
            )
        after = Seen(last_states(step.keys, step.state, step.actions), step.after.final_obs)
        is_running, *shown = jax.device_get((step.is_running, Seen(step.state, step.obs), after, step.after.reward))
        for index in np.flatnonzero(is_running).tolist():
            games[index].add(*(copied_entry(own, index) for own in shown))
    return [game.recorded(table, _label(against)) for game in games], env.render_fps


class _Game:
    """Record of one game: environment states, observations and rewards."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        self._rewards: list[Mapping[Any, Any]] = []

    def add(self, before: Seen, after: Seen, rewards: Mapping[Any, Any]) -> None:
        """Appends an environment step to the record of the game."""
        if not self._seen:
            self._seen.append(before)
        self._seen.append(after)
        self._rewards.append(rewards)

    def recorded(self, table: GameTable, rival: str) -> RecordedEpisode:
        """Returns the game as an episode for a video, with a note that says which agent the recorded policy (the hero)
        plays, and names the rival.
        """
        frames, note = frames_and_note(table.env, self._seen)
        seat = table.seats[int(self._seen[0].state.seat)]
        text = f"hero: {seat}, rival: {rival}"
        of_roles = {
            str(role): np.array([float(own[role]) for own in self._rewards]) for role in table.env.possible_agents
        }
        rewards = np.sum([*of_roles.values()], axis=0)
        return RecordedEpisode(frames, rewards, text if note is None else f"{text}; {note}", of_roles)


def _label(player: Player) -> str:
    """Short name of a player for the note in a video.

    For a path or string, the name is the last path component. For any other player, such as a `Policy` or an
    `Algorithm`, the name is the class name.
    """
    return os.path.basename(os.fspath(player)) if isinstance(player, str | os.PathLike) else type(player).__name__


def _rival(called: str, algorithm: Algorithm, against: Player) -> Policy | None:
    """Returns the opponent's policy for a recorded game; None if the opponent acts at random.

    `against` is the name of a snapshot in `algorithm.league`, or another player that `load_player` accepts, such as the
    path of a checkpoint.
    """
    league = algorithm.league
    snapshots = [] if league is None else league.names
    if league is not None and isinstance(against, str) and against in snapshots:
        return league[against]
    try:
        code = [*code_named_by(algorithm.config), *code_of_env(algorithm.config.env)]
        return load_player(f"{called}: the rival", against, allow=code).policy
    except FileNotFoundError as error:
        known = f", or one of the snapshots {snapshots}" if snapshots else ""
        raise ValueError(
            f"{called}: no snapshot or checkpoint has this name. Use 'random' or the path of a checkpoint{known}."
        ) from error
