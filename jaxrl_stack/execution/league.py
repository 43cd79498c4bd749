"""League of a policy: its stored snapshots, results of games against them, and the choice of opponents."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.acting.opponents import NO_SNAPSHOT
from jaxrl_stack.core.module_map import OPPONENTS
from jaxrl_stack.core.opponents import SnapshotRecord, Snapshots, draw_probabilities, snapshot_name
from jaxrl_stack.utils import devices
from jaxrl_stack.utils.seeds import derived_seed
from jaxrl_stack.utils.streams import Stream, stream_key

if TYPE_CHECKING:
    from jaxrl_stack.execution.device_driver import DeviceDriver
    from jaxrl_stack.policy.policy import Policy
    from jaxrl_stack.runs.figures import RunFigure
    from jaxrl_stack.runs.ratings import GameResults


class League:
    """Stores snapshots of the policy that learns, counts its games against them, and draws opponents.

    Iterations add snapshots and draw opponents by the settings in `Snapshots`, without compiling a program again.

    Args:
        driver: Driver whose rollout has opponents.
        settings: The setting ``opponents``.

    Attributes:
        num_steps: Lifetime steps that snapshots have completed.
    """

    num_steps: int

    def __init__(self, driver: DeviceDriver, settings: Snapshots):
        self._driver, self._settings = driver, settings
        of_devices, axis_name = driver.learner.devices, driver.learner.axis_name
        self._add = devices.map_over_devices(
            self._with_snapshot,
            of_devices,
            axis_name=axis_name,
            in_axes=(0, None, None, None, None),
            out_axes=(0,),
            donate_argnums=(0,),
        )
        self._seat = devices.map_over_devices(
            self._with_index, of_devices, axis_name=axis_name, in_axes=(0, 0), out_axes=(0,), donate_argnums=(0,)
        )
        self._forget()

    def _forget(self) -> None:
        self._seed = self._driver.config.root_seed
        self._num_added = self._num_draws = 0
        self._last_added = 0
        self.num_steps = 0
        # Number of snapshots when the games were played -> number of the opponent -> wins, draws, losses.
        self._games: dict[int, dict[int, np.ndarray]] = {}
        # Of the last training steps: as many as have `min_games` games together.
        self._recent: list[np.ndarray] = []
        shape = (len(self._driver.learner.devices), self._settings.size)
        self._numbers = np.full(self._settings.size, NO_SNAPSHOT, np.int32)
        self._index, self._finished = np.zeros(shape, np.int32), np.zeros(shape, np.int64)

    # ------------------------------------------------------------------------------------------------------- programs

    def _with_snapshot(self, runner: Any, params: Any, rest: Any, place: Any, number: Any) -> tuple[Any]:
        """Returns a device's runner state (environments, opponents) in which the present weights are stored as a
        further snapshot.
        """
        step = self._opponents
        own = runner.modules[step.module_id].env_to_module
        opponents = step.with_snapshot(runner.opponents, params, rest, own, place, number)
        return (dataclasses.replace(runner, opponents=opponents),)

    def _with_index(self, runner: Any, index: Any) -> tuple[Any]:
        """Assigns opponents to a device's environments, and returns the changed runner state.

        Block k, a group of environments with one opponent, then plays against the snapshot that is stored at
        ``index[k]``.
        """
        lengths = runner.episodes.episode_length
        opponents, acting = self._opponents.with_index(runner.opponents, runner.modules[OPPONENTS], lengths, index)
        return (dataclasses.replace(runner, opponents=opponents, modules={**runner.modules, OPPONENTS: acting}),)

    @property
    def _opponents(self) -> Any:
        return self._driver.program.rollout.opponents  # pyright: ignore[reportOptionalMemberAccess]

    # ----------------------------------------------------------------------------------------------------- iterations

    def start(self) -> None:
        """Resets the league and its counts of games, then stores the present weights as the first snapshot."""
        self._forget()
        self._add_snapshot()

    def after_training_step(self, iteration: int) -> None:
        """Counts the games of a training step, and adds a snapshot if one is due.

        If no snapshot is due, draws the next opponent of each block (group of environments with one opponent) that has
        finished enough games since the block's last draw: at least as many games as the block has environments.

        Args:
            iteration: Number of the running iteration.
        """
        state = self._driver.shards.state.opponents
        games = devices.own_shards(state.games)
        present = self._games.setdefault(self._num_added, {})
        for number, own in zip(self._numbers[self._index].ravel().tolist(), games.reshape(-1, 3), strict=True):
            present[number] = present.get(number, np.zeros(3, np.int64)) + own
        self._finished += games.sum(axis=-1)
        self.num_steps += int(devices.own_shards(state.num_steps).sum())
        self._recent.append(games.sum(axis=(0, 1), dtype=np.int64))
        while sum(own.sum() for own in self._recent[1:]) >= self._settings.min_games:
            self._recent.pop(0)
        settings = self._settings
        is_due = settings.every is not None and iteration - self._last_added >= settings.every
        if is_due or self._is_beaten():
            self._last_added = iteration
            self._add_snapshot()
            return
        per_block = state.is_stale.shape[-1] // settings.size
        done = self._finished >= per_block
        if done.any():
            self._draw(done)

    def _is_beaten(self) -> bool:
        rate, (wins, draws, losses) = self._settings.add_when_win_rate, self._recent_games()
        num_games = wins + draws + losses
        enough = num_games >= self._settings.min_games
        return rate is not None and enough and wins + 0.5 * draws >= rate * num_games

    def _recent_games(self) -> tuple[int, int, int]:
        """Returns the policy's numbers of wins, draws and losses in its most recent games.

        Counts the games of whole training steps, from the latest step backwards, until at least `min_games` games are
        counted. If fewer games were played since the last snapshot was added, counts all games since then.
        """
        wins, draws, losses = np.sum([np.zeros(3, np.int64), *self._recent], axis=0).tolist()
        return wins, draws, losses

    def add(self) -> str:
        """Stores the present weights as a snapshot in the league; returns its name, such as ``"snapshot_3"``.

        If the league has `Snapshots.size` snapshots, the new one replaces the oldest or the weakest. Environments that
        played against the replaced snapshot then draw another opponent.

        Raises:
            RuntimeError: If an iteration or an evaluation is running.
        """
        self._driver.at_work.check_is_idle("league.add()")
        return self._add_snapshot()

    def _add_snapshot(self) -> str:
        place, number = self._place(), self._num_added

        def with_snapshot(learner: Any, runner: Any) -> Any:
            (runner,) = self._add(runner, learner.params, learner.rest, np.int32(place), np.int32(number))
            return runner

        self._driver.change_runner(with_snapshot)
        is_replaced = self._index == place
        self._recent = []
        self._numbers[place] = number
        self._num_added += 1
        self._draw(is_replaced if number else np.ones_like(is_replaced))
        return snapshot_name(number)

    def _place(self) -> int:
        """Returns the index in the device arrays at which the next snapshot is stored.

        This is an unused index. If all indices are used, returns the index of the snapshot that the next one
        overwrites: the oldest or the weakest, as set by `Snapshots.replace`.
        """
        empty = np.flatnonzero(self._numbers == NO_SNAPSHOT)
        if empty.size:
            return int(empty[0])
        if self._settings.replace == "oldest":
            return int(np.argmin(self._numbers))
        records = self._records_of_stack()
        return int(np.argmax([own.smoothed_win_rate for own in records]))

    def _draw(self, is_drawn: np.ndarray) -> None:
        """Draws an opponent from the stored snapshots for each of the selected blocks (groups) of environments.

        Args:
            is_drawn: bool ``[D, K]``, blocks that draw.
        """
        records = self._records_of_stack()
        numbers = np.random.default_rng(derived_seed("opponents", self._seed, self._num_draws))
        index = self._index.copy()
        for block, where in enumerate(np.argwhere(is_drawn).tolist()):
            index[tuple(where)] = self._drawn(records, numbers, (self._num_draws, block))
        self._num_draws += 1
        self._index, self._finished[is_drawn] = index, 0

        def with_index(learner: Any, runner: Any) -> Any:
            (runner,) = self._seat(runner, devices.place_sharded(index, self._driver.learner.devices))
            return runner

        self._driver.change_runner(with_index)

    def _drawn(self, records: Sequence[SnapshotRecord], numbers: np.random.Generator, at: tuple[int, int]) -> int:
        draw = self._settings.draw
        if isinstance(draw, str):
            return int(numbers.choice(len(records), p=draw_probabilities(draw, records)))
        key = stream_key(self._seed, Stream.OPPONENTS)
        for number in at:
            key = jax.random.fold_in(key, number)
        index = int(draw(records, key))
        if not 0 <= index < len(records):
            raise ValueError(
                f"The function Snapshots(draw={getattr(draw, '__name__', draw)}) returned the index {index}, but the "
                f"league has {len(records)} snapshots. Return an index in [0, {len(records)})."
            )
        return index

    # -------------------------------------------------------------------------------------------------------- results

    def table(self) -> list[SnapshotRecord]:
        """Returns wins, draws and losses against each snapshot since the start of training, oldest snapshot first."""
        total: dict[int, np.ndarray] = collections.defaultdict(lambda: np.zeros(3, np.int64))
        for _, number, own in self._all_games():
            total[number] = total[number] + own
        return [self._record(number, total[number]) for number in range(self._num_added)]

    def games(self) -> GameResults:
        """Returns a `GameResults` with the wins and draws of each pair of players, in all games since the start of
        training.

        Players are all snapshots, in their order, and the policy by its name. The policy learns while it plays: each
        game counts for the first snapshot that was added after it, or for the policy if no snapshot was added since.
        ``games().elo()``, ``table()`` and ``plot()`` rate the players; see `GameResults`.
        """
        players = (*map(snapshot_name, range(self._num_added)), self._settings.of)
        wins, draws = np.zeros((2, len(players), len(players)), int)
        for player, other, (won, drawn, lost) in self._all_games():
            wins[player, other] += won
            wins[other, player] += lost
            draws[player, other] += drawn
            draws[other, player] += drawn
        # By name: rooms of results are below this one.
        return importlib.import_module("jaxrl_stack.runs.ratings").GameResults(players, wins, draws)

    def plot(self, path: str | os.PathLike[str] | None = None, title: str | None = None) -> RunFigure:
        """Plots the Elo ratings of the league's players, and next to them a matrix of their win rates; see
        `GameResults.plot`.
        """
        return self.games().plot(path, title)

    def results(self) -> dict[str, Any]:
        """Returns the league's entries in the result of an iteration, ``result["league"]``.

        ``num_wins``, ``num_draws``, ``num_losses`` and ``win_rate``, in which a draw is half a win, cover the last
        games since the last snapshot, about `Snapshots.min_games`. ``num_snapshots`` counts all snapshots so far,
        ``win_rates`` has the rates of the games since the last snapshot, by opponent. Rates without games are NaN.
        """
        wins, draws, losses = self._recent_games()
        return {
            "num_snapshots": self._num_added,
            "num_wins": wins,
            "num_draws": draws,
            "num_losses": losses,
            "win_rate": _rate(wins, draws, losses),
            "win_rates": {own.snapshot: _rate(*own[1:4]) for own in self._records_of_stack()},
        }

    @property
    def names(self) -> list[str]:
        """Names of the snapshots that are stored at present, oldest first."""
        return [snapshot_name(number) for number in sorted(self._numbers.tolist()) if number != NO_SNAPSHOT]

    def __getitem__(self, name: str) -> Policy:
        """Returns a stored snapshot as a policy, which can be saved, served and exported.

        Args:
            name: Name of the snapshot, such as ``"snapshot_3"``.

        Raises:
            KeyError: If no snapshot of this name is in the stack.
        """
        weights, driver, module_id = self.weights(name), self._driver, self._settings.of
        assert driver.env_runner is not None, "opponents play in an environment"
        opponents, place = devices.host_view(driver.shards.state.opponents), self._place_of(name)
        statistics = jax.tree.map(lambda x: np.asarray(x[0, place]), opponents.env_to_module)
        stored = driver.env_runner.pipelines.stored_env_to_module({module_id: statistics})
        return driver.algorithm._policy(module_id, weights, stored[module_id])

    def weights(self, name: str) -> dict[str, np.ndarray]:
        """Returns the weights of a stored snapshot, in the form of `RLModule.get_state`.

        ``algo.set_weights({"main": algo.league.weights("snapshot_3")})`` continues training from it.

        Args:
            name: Name of the snapshot.

        Raises:
            KeyError: If no snapshot of this name is in the stack.
        """
        module_id, place = self._settings.of, self._place_of(name)
        learner, state = self._driver.learner, devices.host_view(self._driver.shards.state.opponents)
        own = jax.tree.map(lambda x: np.asarray(x[0, place]), {**state.params, **state.rest})
        prefix = f"{module_id}/"
        present = learner.module[module_id].get_state()
        return {**present, **{ref.removeprefix(prefix): value for ref, value in own.items()}}

    def _place_of(self, name: str) -> int:
        """Returns the index of a snapshot in the device arrays that store the snapshots."""
        known = {snapshot_name(number): place for place, number in enumerate(self._numbers.tolist()) if number >= 0}
        if name not in known:
            raise KeyError(f"The league stores no snapshot {name!r}. Use one of {list(known)}.")
        return known[name]

    def _all_games(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yields the results of all games since the start of training, as ``(n, k, counts)``.

        `counts` has the learning policy's wins, draws and losses against snapshot k, in the games played after n
        snapshots had been added to the league, and before the next one was added.
        """
        for period, games in self._games.items():
            for number, own in games.items():
                yield period, number, own

    def _records_of_stack(self) -> list[SnapshotRecord]:
        """Returns the wins, draws and losses against each stored snapshot since the last snapshot was added, in the
        order of storage.
        """
        present, none = self._games.get(self._num_added, {}), np.zeros(3, np.int64)
        return [self._record(number, present.get(number, none)) for number in self._numbers.tolist() if number >= 0]

    def _record(self, number: int, games: np.ndarray) -> SnapshotRecord:
        wins, draws, losses = games.tolist()
        return SnapshotRecord(snapshot_name(number), wins, draws, losses, bool((self._numbers == number).any()))

    # ---------------------------------------------------------------------------------------------------------- state

    def get_state(self) -> dict[str, Any]:
        """Returns the league's state for checkpoints, such as counts of games. The stored snapshots and the
        environments' opponents are not included, because the environments' state contains them.
        """
        games = list(self._all_games())
        return {
            "seed": self._seed,
            "num_added": self._num_added,
            "num_draws": self._num_draws,
            "last_added": self._last_added,
            "num_steps": self.num_steps,
            "pairs": np.array([own[:2] for own in games], np.int64).reshape(-1, 2),
            "games": np.array([own[2] for own in games], np.int64).reshape(-1, 3),
            "finished": self._finished.copy(),
            "recent": np.array(self._recent, np.int64).reshape(-1, 3),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the league's counts from a state that `get_state` returned. Must be called after the state of the
        environments was restored, because that state contains the snapshots.

        Args:
            state: The state; {} keeps the snapshots of the environments and starts all counts at 0. If the environments
                have no snapshots, the league starts with one of the present weights.
        """
        self._forget()
        opponents = self._driver.shards.state.opponents
        self._numbers = np.array(devices.host_view(opponents.numbers)[0])
        self._index = np.array(devices.own_shards(opponents.index))
        if (self._numbers == NO_SNAPSHOT).all():
            self.start()
            return
        if not state:
            self._num_added = int(self._numbers.max()) + 1
            return
        self._seed, self._num_added = int(state["seed"]), int(state["num_added"])
        self._num_draws, self._last_added = int(state["num_draws"]), int(state["last_added"])
        self.num_steps = int(state["num_steps"])
        pairs, games = np.asarray(state["pairs"]).tolist(), np.asarray(state["games"])
        for (period, number), own in zip(pairs, games, strict=True):
            self._games.setdefault(period, {})[number] = own
        self._finished = np.array(state["finished"])
        self._recent = list(np.asarray(state["recent"], np.int64))


def _rate(wins: int, draws: int, losses: int) -> float:
    """Mean points per game: a win gives 1 point, a draw 0.5, a loss 0; NaN without games."""
    games = wins + draws + losses
    return (wins + 0.5 * draws) / games if games else float("nan")
