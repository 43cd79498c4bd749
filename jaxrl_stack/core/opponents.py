"""Settings of opponents for self-play: which snapshots of a policy play against it, and when snapshots are added."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxrl_stack.utils.class_paths import register_class
from jaxrl_stack.utils.signatures import call_problem

DRAWS = ("uniform", "hard")
REPLACES = ("oldest", "weakest")
SNAPSHOT_PREFIX = "snapshot_"
"""Names of snapshots are this prefix and their number."""


class SnapshotRecord(NamedTuple):
    """Results of the policy's games against one of its snapshots, counted from the policy's view.

    Attributes:
        snapshot: Name of the snapshot: ``"snapshot_0"`` has the weights of the start.
        wins: Number of games that the policy has won.
        draws: Number of drawn games.
        losses: Number of lost games.
        is_active: Whether the snapshot is in the stack and can be an opponent.
    """

    snapshot: str
    wins: int
    draws: int
    losses: int
    is_active: bool

    @property
    def games(self) -> int:
        """Number of games that the policy has played against the snapshot."""
        return self.wins + self.draws + self.losses

    @property
    def smoothed_win_rate(self) -> float:
        """Win rate of the policy against the snapshot, in [0, 1], smoothed with one additional draw.

        A draw is half a win. Because of the additional draw, the rate is 0.5 without games.
        """
        return (self.wins + 0.5 * self.draws + 0.5) / (self.games + 1)


DrawFunction = Callable[[Sequence[SnapshotRecord], Any], Any]
"""``(records of the snapshots in the stack, PRNG key) -> index of a record``; called once for each block."""


@register_class
@dataclasses.dataclass(frozen=True)
class Snapshots:
    """Settings of the opponents in self-play, for ``multi_agent(opponents=Snapshots(...))``: the policy plays against
    snapshots of its weights.

    On each device, the first environments, a share of `share_of_self_play`, use self-play: the policy plays all roles,
    and learns from all of them. The other environments form `size` equal blocks, and each block plays against one
    snapshot. The stack begins with one snapshot, of the initial weights. A block draws its opponent again after as many
    games as it has environments.

    Args:
        of: Id of the policy.
        size: Number of snapshots in the stack, and of blocks on each device.
        add_when_win_rate: Adds a snapshot when the policy's points per game against the stack reach this number, over
            the last `min_games` games since the last snapshot. A draw is half a win. None: never.
        every: Adds a snapshot after this number of iterations; None: never.
        draw: Distribution of opponents: ``"uniform"``; ``"hard"``, proportional to ``(1 - rate)**2`` with
            `SnapshotRecord.smoothed_win_rate` (prioritized fictitious self-play with p = 2, Vinyals et al., 2019,
            "Grandmaster level in StarCraft II using multi-agent reinforcement learning", Methods); or a function
            ``(records, key) -> index`` of a list of `SnapshotRecord` and a PRNG key. Records cover the games since the
            last snapshot.
        share_of_self_play: Share of the environments with self-play, in [0, 1).
        replace: Snapshot that is removed from a full stack: ``"oldest"``, or ``"weakest"``, against which the policy
            has the most points per game.
        min_games: Number of games for `add_when_win_rate`; whole training steps are counted.

    Raises:
        ValueError: If a value is invalid.
    """

    of: str
    size: int = 8
    add_when_win_rate: float | None = 0.65
    every: int | None = None
    draw: Literal["uniform", "hard"] | DrawFunction = "uniform"
    share_of_self_play: float = 0.5
    replace: Literal["oldest", "weakest"] = "oldest"
    min_games: int = 100

    def __post_init__(self) -> None:
        rate, share = self.add_when_win_rate, self.share_of_self_play
        problems = {
            "of": None if isinstance(self.of, str) and self.of else "the id of a policy, such as 'main'",
            "size": _at_least_one(self.size),
            "add_when_win_rate": (
                None if rate is None or (_is_number(rate) and 0 < rate < 1) else "a number in (0, 1), or None"
            ),
            "every": None if self.every is None else _at_least_one(self.every, " of iterations, or None"),
            "draw": _problem_with_draw(self.draw),
            "share_of_self_play": None if _is_number(share) and 0 <= share < 1 else "a number in [0, 1)",
            "replace": None if self.replace in REPLACES else "'oldest' or 'weakest'",
            "min_games": _at_least_one(self.min_games),
        }
        for name, problem in problems.items():
            if problem is not None:
                default = type(self).__dataclass_fields__[name].default
                remedy = "Use of='main'." if name == "of" else f"Leave {name} out for {default!r}."
                raise ValueError(f"Snapshots({name}={getattr(self, name)!r}): must be {problem}. {remedy}")

    def sizes(self, num_envs: int, num_devices: int) -> tuple[int, int]:
        """Returns two numbers: environments with self-play on each device, and environments in each block.

        On each device, the environments without self-play form `size` equal blocks. In the environments of a block, the
        policy plays against the same snapshot.

        Args:
            num_envs: Environments over all devices.
            num_devices: Number of devices.

        Raises:
            ValueError: If `share_of_self_play` or `size` does not divide the environments of a device.
        """
        each = num_envs // num_devices
        num_self_play = self._num_self_play(each)
        if num_self_play is None:
            fitting = self._fitting(each)
            use = "" if fitting is None else f"num_envs_per_env_runner={fitting * num_devices}, or "
            raise ValueError(
                f"Snapshots(size={self.size}, share_of_self_play={self.share_of_self_play}) does not fit the {each} "
                f"environments of each device (num_envs_per_env_runner={num_envs} on {num_devices} device(s)). "
                f"On each device, the number of environments with self-play, {self.share_of_self_play * each:g}, must "
                f"be a whole number, and the number of other environments must be a multiple of size.\nUse {use}"
                "another size or share_of_self_play."
            )
        return num_self_play, (each - num_self_play) // self.size

    def _num_self_play(self, each: int) -> int | None:
        """Returns the number of environments with self-play on a device, or None if the settings do not fit the device.

        The number is ``share_of_self_play * each`` for a device with `each` environments. Returns None if this number
        is not an integer, or if the number of other environments is not a multiple of `size` (number of blocks; each
        block plays against one snapshot).
        """
        number = self.share_of_self_play * each
        is_whole = abs(number - round(number)) <= 1e-6
        return round(number) if is_whole and not (each - round(number)) % self.size else None

    def _fitting(self, each: int) -> int | None:
        """Returns the smallest number of environments per device, above `each`, that fits the settings
        `share_of_self_play` and `size`.

        A number fits if the number of environments with self-play is an integer, and the number of other environments
        is a multiple of `size` (number of blocks; each block plays against one snapshot). Returns None if no number up
        to ``each + 100 * size`` fits.
        """
        numbers = range(each + 1, each + 100 * self.size + 1)
        return next((number for number in numbers if self._num_self_play(number) is not None), None)


def draw_probabilities(draw: str, records: Sequence[SnapshotRecord]) -> np.ndarray:
    """Returns, for each snapshot, the probability that it is drawn as an opponent, float64 ``[n]`` for n snapshots.

    ``draw="uniform"`` gives equal probabilities; ``"hard"`` gives probabilities proportional to ``(1 - rate)**2``. The
    ``rate`` is `SnapshotRecord.smoothed_win_rate`, the policy's win rate against the snapshot. See `Snapshots`.

    Args:
        draw: "uniform" or "hard".
        records: Results of the games against each snapshot.
    """
    weights = np.square([1.0 if draw == "uniform" else 1.0 - own.smoothed_win_rate for own in records])
    return weights / weights.sum()


def snapshot_name(number: int) -> str:
    """Returns the name of the policy snapshot with a given number."""
    return f"{SNAPSHOT_PREFIX}{number}"


def is_snapshot_name(name: str) -> bool:
    """Whether a name has the form of a snapshot's name: the prefix "snapshot_" and a number, as `snapshot_name` returns
    it.
    """
    return name.startswith(SNAPSHOT_PREFIX) and name.removeprefix(SNAPSHOT_PREFIX).isdecimal()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at_least_one(value: Any, unit: str = "") -> str | None:
    is_valid = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return None if is_valid else f"an int of at least 1{unit}"


def _problem_with_draw(draw: Any) -> str | None:
    if callable(draw):
        problem = call_problem(draw, "records", "key")
        return None if problem is None else f"a function that can be called as draw(records, key) ({problem})"
    return None if draw in DRAWS else "'uniform', 'hard' or a function draw(records, key) -> index"
