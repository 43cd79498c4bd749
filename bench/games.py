"""Learning of games against snapshots: tic-tac-toe, connect four, rock-paper-scissors, and the cost of the stack.

    python -m bench.games
    python -m bench.games --only tic_tac_toe --seeds 4
    python -m bench.games --only stack

``tic_tac_toe``: PPO, 5M env steps. The final policy must not lose 95 % of 1,000 games in which it moves first, and of
1,000 in which it moves second, against a minimax player that draws uniformly among its best moves; three quarters of
the seeds must pass. ``connect_four``: PPO, 4M env steps; 90 % wins against legal random moves and 60 % wins against
its own snapshot at 2M, 200 games in which it moves first and 200 in which it moves second; three quarters of the seeds.
Policies draw their moves.

``rock_paper_scissors``: each probability of the mean policy of 64 snapshots is within 0.1 of 1/3. Plain self-play with
the same settings cycles: its policies differ from 1/3 by at least 0.3 on average, and their most probable move passes
through all three moves at least three times. ``stack``: training iterations against a stack of 8 snapshots take at most
1.2 times as many CPU seconds as with a stack of 1, at 512 environments, in turns in one process.

Finished runs are lines of ``bench/games.jsonl`` and are not repeated. Exits with 1 if a bar is missed. Needs pgx:
``pip install 'jaxrl-stack[pgx]'``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench import harness
from bench.journal import Journal
from bench.multi_agent import Loop
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.opponents import Snapshots
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.examples.envs.multi_agent import RockPaperScissors
from jaxrl_stack.runs.origin import installed_versions

JOURNAL = Path(__file__).with_suffix(".jsonl")
MAIN = "main"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
"""Fields of the rows, columns and diagonals of tic-tac-toe."""


# ------------------------------------------------------------------------------------------------------------- minimax


@functools.cache
def minimax_value(board: tuple[int, ...]) -> int:
    """Value of a position of tic-tac-toe for the player to move: 1 won, 0 drawn, -1 lost.

    Args:
        board: 9 fields: 1 for the player to move, 2 for the other player, 0 for free.
    """
    if any(all(board[field] == 2 for field in line) for line in LINES):
        return -1
    return max((-minimax_value(after) for after in _moves(board).values()), default=0)


def _moves(board: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """Returns ``{field: position after a move to it}``, for the player who moves next."""
    other = tuple((0, 2, 1)[mark] for mark in board)
    return {field: (*other[:field], 2, *other[field + 1 :]) for field in range(9) if board[field] == 0}


def positions() -> set[tuple[int, ...]]:
    """Returns all positions of tic-tac-toe that games reach, each for the player to move."""
    found, new = set[tuple[int, ...]](), {(0,) * 9}
    while new:
        found |= new
        new = {after for board in new if not _is_won(board) for after in _moves(board).values()} - found
    return found


def _is_won(board: tuple[int, ...]) -> bool:
    return any(all(board[field] == 2 for field in line) for line in LINES)


def best_moves() -> np.ndarray:
    """Moves of best minimax value, bool ``[3**9, 9]``, in row ``sum(board[i] * 3**i)``.

    Rows of finished games are False.
    """
    table = np.zeros((3**9, 9), bool)
    for board in positions():
        if not _is_won(board):
            values = {field: -minimax_value(after) for field, after in _moves(board).items()}
            for field, value in values.items():
                table[sum(mark * 3**i for i, mark in enumerate(board)), field] = value == max(values.values())
    return table


# ------------------------------------------------------------------------------------------------------------- players


class Player(NamedTuple):
    """Player of games of pgx.

    Attributes:
        act: ``(weights, observations [B, ...], PRNG key) -> actions [B]``.
        weights: Arguments of the compiled program, which is shared by players with the same `act`.
    """

    act: Callable[[Any, Any, jax.Array], jax.Array]
    weights: Any = None


def _random(weights: Any, obs: Any, key: jax.Array) -> jax.Array:
    return jax.random.categorical(key, jnp.where(obs["action_mask"] > 0, 0.0, -jnp.inf))


def _minimax(weights: jax.Array, obs: Any, key: jax.Array) -> jax.Array:
    own, other = (obs["observations"][..., i].reshape(-1, 9).astype(jnp.int32) for i in range(2))
    row = (own + 2 * other) @ (3 ** jnp.arange(9))
    return jax.random.categorical(key, jnp.where(weights[row], 0.0, -jnp.inf))


RANDOM = Player(_random)
"""Draws legal moves uniformly."""


def minimax() -> Player:
    """Player of tic-tac-toe that draws uniformly among the moves of best minimax value."""
    return Player(_minimax, jnp.asarray(best_moves()))


class PolicyPlayers:
    """Players with the weights of a policy at different times, which share one program.

    Args:
        algo: The algorithm.
        explore: Whether moves are drawn from the policy; False takes the most probable move.
    """

    def __init__(self, algo: Any, explore: bool = True):
        self._algo, self._explore = algo, explore
        self._graph = nnx.split(algo.get_policy(MAIN).module)[0]

    def now(self) -> Player:
        """Returns a player with the present weights."""
        return Player(self._act, nnx.split(self._algo.get_policy(MAIN).module)[1])

    def _act(self, weights: Any, obs: Any, key: jax.Array) -> jax.Array:
        out = nnx.merge(self._graph, weights).forward_inference({Columns.OBS: obs})
        logits = out[Columns.ACTION_DIST_INPUTS]
        return jax.random.categorical(key, logits) if self._explore else jnp.argmax(logits, axis=-1)


class Score(NamedTuple):
    """Shares of games that a player has won, drawn and lost."""

    wins: float
    draws: float
    losses: float


@functools.partial(jax.jit, static_argnames=("env", "acts", "games", "max_moves"))
def _play(env: Any, acts: Any, weights: Any, key: jax.Array, games: int, max_moves: int) -> jax.Array:
    """Returns of the player who begins, float32 ``[games]``."""

    def move(carry: Any, key: jax.Array) -> Any:
        obs, state, running, returns, begins = carry
        for act, own, turn_key in zip(acts, weights, jax.random.split(key), strict=True):
            env_key, act_key = jax.random.split(turn_key)
            # The observations of all agents are the acting one's.
            actions = act(own, obs[env.possible_agents[0]], act_key)
            step = jax.vmap(env.step, (0, 0, 0, None))
            done = step(
                jax.random.split(env_key, games), state, dict.fromkeys(env.possible_agents, actions), env.params
            )
            rewards = jnp.stack([done.reward[agent] for agent in env.possible_agents], axis=1)
            returns += jnp.where(running, rewards[jnp.arange(games), begins], 0.0)
            running &= ~(done.terminated | done.truncated)
            obs, state = done.obs, done.state
        return (obs, state, running, returns, begins), None

    reset_key, key = jax.random.split(key)
    obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(reset_key, games), env.params)
    acts_now = jax.vmap(env.who_acts)(state)
    begins = jnp.argmax(jnp.stack([acts_now[agent] for agent in env.possible_agents], axis=1), axis=1)
    carry = obs, state, jnp.ones(games, bool), jnp.zeros(games), begins
    carry, _ = jax.lax.scan(move, carry, jax.random.split(key, max_moves // 2))
    return carry[3]


def play(env: MultiAgentJaxEnv, first: Player, second: Player, key: jax.Array, games: int, max_moves: int) -> Score:
    """Plays games in one compiled program.

    Args:
        env: Game of two players of pgx, who move in turns.
        first: Player who begins all games.
        second: The other player.
        key: PRNG key.
        games: Number of games.
        max_moves: Largest number of moves of a game; an even number.

    Returns:
        Score of `first`.
    """
    acts, weights = zip(first, second, strict=True)
    returns = np.asarray(_play(env, acts, weights, key, games, max_moves))
    return Score(float((returns > 0).mean()), float((returns == 0).mean()), float((returns < 0).mean()))


def play_both(env: MultiAgentJaxEnv, player: Player, other: Player, key: jax.Array, games: int, max_moves: int) -> Any:
    """Scores of `player` in `games` games in which it moves first, and in as many in which it moves second."""
    one, two = jax.random.split(key)
    first = play(env, player, other, one, games, max_moves)
    second = play(env, other, player, two, games, max_moves)
    return first, Score(*reversed(second))


# --------------------------------------------------------------------------------------------------------------- tasks


def config_of(env: Any, opponents: Snapshots | None, seed: int, **training: Any) -> PPOConfig:
    """PPO with one policy for all seats, on one CPU device.

    Args:
        env: The game.
        opponents: Snapshots; None for plain self-play.
        seed: Seed.
        **training: Settings of ``training()``, besides the shared ones.
    """
    config = PPOConfig().environment(env).learners(num_cpus_per_learner=1).debugging(seed=seed)
    config.training(gamma=1.0, lambda_=0.95, use_kl_loss=False, grad_clip=0.5, **training)
    if opponents is None:
        return config.multi_agent(policies={MAIN}, policy_mapping_fn=lambda agent_id, episode, **kwargs: MAIN)
    return config.multi_agent(policies={MAIN}, policies_to_train=[MAIN], opponents=opponents)


@dataclasses.dataclass(frozen=True)
class BoardGame:
    """Game of pgx with the settings that learn it.

    Args:
        env: Name of the environment.
        steps: Env steps of a run.
        max_moves: Largest number of moves of a game; an even number.
        model: Settings of the network.
        entropy: First and last entropy coefficient of a linear schedule.
        every: Iterations between snapshots.
        size: Number of snapshots in the stack.
        num_envs: Number of environments.
    """

    env: str
    steps: int
    max_moves: int
    model: Mapping[str, Any]
    entropy: tuple[float, float]
    every: int
    size: int = 8
    num_envs: int = 128

    @property
    def identity(self) -> dict[str, Any]:
        """Settings in the journal: other settings are other runs."""
        return {"steps": self.steps, "entropy": list(self.entropy), "every": self.every}

    def config(self, seed: int) -> PPOConfig:
        """Settings, with self-play in half of the environments."""
        batch = 32 * self.num_envs
        config = config_of(
            self.env,
            Snapshots(of=MAIN, size=self.size, add_when_win_rate=None, every=self.every, share_of_self_play=0.5),
            seed,
            train_batch_size_per_learner=batch,
            minibatch_size=batch // 4,
            num_epochs=3,
            lr=[[0, 1e-3], [self.steps, 1e-4]],
            entropy_coeff=[[0, self.entropy[0]], [self.steps, self.entropy[1]]],
        )
        return config.env_runners(num_envs_per_env_runner=self.num_envs).rl_module(model_config=dict(self.model))


# Convolutions as large as a line, without padding, before a dense layer.
TIC_TAC_TOE = BoardGame(
    "pgx_multi/tic_tac_toe",
    steps=5_000_000,
    max_moves=10,
    model={"conv_filters": [[64, 3, 1, "valid"]], "head_fcnet_hiddens": [64]},
    entropy=(0.2, 0.1),
    every=20,
)
CONNECT_FOUR = BoardGame(
    "pgx_multi/connect_four",
    steps=4_000_000,
    max_moves=42,
    model={"conv_filters": [[32, 4, 1, "valid"]], "head_fcnet_hiddens": [64], "vf_share_layers": True},
    entropy=(0.2, 0.05),
    every=60,
)


def train(algo: Any, steps: int, parts: int, measure: Callable[[int], Any]) -> list[Any]:
    """Trains for a number of env steps; returns `measure(steps so far)` after each of equal parts.

    Args:
        algo: The algorithm.
        steps: Env steps.
        parts: Number of parts.
        measure: Called after each part.
    """
    measured, sampled = [], 0
    for part in range(1, parts + 1):
        while sampled < steps * part / parts:
            sampled = int(algo.train()["num_env_steps_sampled_lifetime"])
        measured.append(measure(sampled))
        print(measured[-1], flush=True)
    return measured


def against_minimax(seed: int, game: BoardGame = TIC_TAC_TOE, games: int = 1000, parts: int = 10) -> dict[str, Any]:
    """Trains tic-tac-toe; measures the share of games that are not lost against minimax."""
    algo, env, opponent = game.config(seed).build_algo(), resolve_env(game.env).make(), minimax()
    drawn, greedy = PolicyPlayers(algo), PolicyPlayers(algo, explore=False)

    def not_lost(steps: int) -> dict[str, Any]:
        key = jax.random.fold_in(jax.random.key(seed), steps)
        scores = {
            "drawn": play_both(env, drawn.now(), opponent, key, games, game.max_moves),
            "greedy": play_both(env, greedy.now(), opponent, key, games, game.max_moves),
        }
        kept = {name: [round(1 - own.losses, 3) for own in both] for name, both in scores.items()}
        return {"steps": steps, **kept}

    curve = train(algo, game.steps, parts, not_lost)
    algo.stop()
    return {"curve": curve, "not_lost": curve[-1]["drawn"], "is_met": min(curve[-1]["drawn"]) >= 0.95}


def against_half(seed: int, game: BoardGame = CONNECT_FOUR, games: int = 200, parts: int = 4) -> dict[str, Any]:
    """Trains connect four; measures wins against random moves, and against the policy after half of the steps."""
    algo, env = game.config(seed).build_algo(), resolve_env(game.env).make()
    players, past = PolicyPlayers(algo), list[Player]()

    def wins(steps: int) -> dict[str, Any]:
        past.append(players.now())
        one, two = jax.random.split(jax.random.fold_in(jax.random.key(seed), steps))
        against_random = play_both(env, past[-1], RANDOM, one, games, game.max_moves)
        measured = {"steps": steps, "random": [round(own.wins, 3) for own in against_random]}
        if len(past) == parts:
            scores = play_both(env, past[-1], past[parts // 2 - 1], two, games, game.max_moves)
            measured |= {"half": [round(own.wins, 3) for own in scores], "half_draws": [own.draws for own in scores]}
        return measured

    curve = train(algo, game.steps, parts, wins)
    algo.stop()
    last = {name: curve[-1][name] for name in ("random", "half", "half_draws")}
    is_met = np.mean(last["random"]) >= 0.9 and np.mean(last["half"]) >= 0.6
    return {"curve": curve, **last, "is_met": bool(is_met)}


class OneMove(RockPaperScissors):
    """Rock-paper-scissors with games of one move: a policy is three probabilities."""

    num_moves = 1


def probabilities(policy: Any) -> np.ndarray:
    """Probabilities of rock, paper and scissors, float ``[3]``."""
    _, _, outputs = policy.compute_actions(np.zeros(1, np.int64), explore=True)
    return np.asarray(jax.nn.softmax(outputs[Columns.ACTION_DIST_INPUTS][0]))


class Course(NamedTuple):
    """Policies of rock-paper-scissors in the course of training.

    Attributes:
        mean: Mean of their probabilities of rock, paper and scissors.
        deviation: Largest absolute difference of `mean` from 1/3.
        spread: Mean over policies of the largest absolute difference from 1/3: 0 if uniform, 2/3 if deterministic.
        rounds: Number of rounds of the most probable move through rock, paper and scissors, each of which beats the
            move before it.
    """

    mean: list[float]
    deviation: float
    spread: float
    rounds: float

    @classmethod
    def of(cls, policies: np.ndarray) -> Course:
        """Course of probabilities ``[N, 3]``, in the order of training."""
        mean = policies.mean(axis=0)
        spread = np.abs(policies - 1 / 3).max(axis=1).mean()
        steps = np.diff(policies.argmax(axis=1)) % 3
        rounds = ((steps == 1).sum() - (steps == 2).sum()) / 3
        deviation = np.abs(mean - 1 / 3).max()
        return cls([round(float(x), 3) for x in mean], *(round(float(x), 3) for x in (deviation, spread, rounds)))


def rock_paper_scissors_courses(seed: int, size: int = 64, every: int = 10, num_envs: int = 128) -> dict[str, Any]:
    """Trains rock-paper-scissors against snapshots and by plain self-play, with the same settings.

    The stack keeps all snapshots, and opponents are drawn uniformly: the policy learns a best response to the mean of
    its past policies, as in fictitious play. In zero-sum games this mean converges to an equilibrium (Robinson, 1951,
    "An iterative method of solving a game"), which is uniform here.

    Args:
        seed: Seed.
        size: Number of snapshots at the end.
        every: Iterations between snapshots.
        num_envs: Number of environments, a multiple of `size`.
    """

    def build(opponents: Snapshots | None) -> Any:
        batch = 8 * num_envs
        sizes = {"train_batch_size_per_learner": batch, "minibatch_size": batch, "num_epochs": 4}
        config = config_of(OneMove, opponents, seed, **sizes, lr=1e-2, entropy_coeff=0.2)
        config.env_runners(num_envs_per_env_runner=num_envs).rl_module(model_config={"fcnet_hiddens": [16]})
        return config.build_algo()

    settings = {"size": size, "add_when_win_rate": None, "every": every, "share_of_self_play": 0.0}
    algo = build(Snapshots(of=MAIN, **settings))
    for _ in range(every * (size - 1)):
        algo.train()
    snapshots = [probabilities(algo.league[record.snapshot]) for record in algo.league.table()]
    algo.stop()
    algo, plain = build(None), []
    for _ in range(every * (size - 1) // 3):
        plain.append(probabilities(algo.get_policy(MAIN)))  # in each iteration: a round can take a few iterations only
        algo.train()
    algo.stop()
    courses = {"snapshots": Course.of(np.array(snapshots)), "plain": Course.of(np.array(plain))}
    cycles = courses["plain"].spread >= 0.3 and courses["plain"].rounds >= 3
    return {
        **{name: course._asdict() for name, course in courses.items()},
        "is_met": courses["snapshots"].deviation <= 0.1 and cycles,
    }


def stack_cost(game: BoardGame, rounds: int = 9, seconds: float = 2.0) -> dict[str, Any]:
    """Cost of an iteration against 8 snapshots, relative to one snapshot, at 512 environments.

    Returns:
        ``ratio``: median over rounds of the ratio of CPU seconds, which other processes disturb least; ``ratios``: all
        rounds; ``seconds_ratio``: the same for wall seconds.
    """
    games = {size: dataclasses.replace(game, size=size, num_envs=512) for size in (1, 8)}
    loops = {size: Loop(own.config(0).build_algo()) for size, own in games.items()}
    timings = harness.interleave(loops, rounds, seconds)
    for loop in loops.values():
        loop.algo.stop()
    one, eight = ([cores / rate for rate, cores in zip(own.rates, own.cores, strict=True)] for own in timings.values())
    ratios = sorted(b / a for a, b in zip(one, eight, strict=True))
    ratio = statistics.median(ratios)
    return {
        "ratio": round(ratio, 3),
        "ratios": [round(own, 3) for own in ratios],
        "seconds_ratio": round(1 / timings[8].ratio_to(timings[1]), 3),
        **{f"steps_per_cpu_s_{size}": round(own.rate_per_core) for size, own in timings.items()},
        "is_met": ratio <= 1.2,
    }


def measured(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Result of a run, with its CPU seconds and the versions of the packages."""
    started = time.process_time()
    result = measure()
    versions = installed_versions(("jax", "jaxlib", "pgx"))
    return {**result, "cpu_seconds": round(time.process_time() - started, 1), "versions": versions}


def run_seeds(
    name: str, seeds: int, journal: Journal, identity: Mapping[str, Any], measure: Callable[[int], dict[str, Any]]
) -> tuple[list[dict[str, Any]], bool]:
    """Lines of all seeds of a task, and whether three quarters of them have passed."""
    lines = []
    for seed in range(seeds):
        run = {"task": name, "seed": seed, **identity}
        lines.append(journal.once(run, lambda seed=seed: measured(lambda: measure(seed))))
    return lines, sum(line["is_met"] for line in lines) >= math.ceil(0.75 * seeds)


def tic_tac_toe(seeds: int, journal: Journal) -> bool:
    """Runs tic-tac-toe and prints the table."""
    lines, is_met = run_seeds("tic_tac_toe", seeds, journal, TIC_TAC_TOE.identity, against_minimax)
    rows = [[line["seed"], *line["not_lost"], *line["curve"][-1]["greedy"], line["cpu_seconds"]] for line in lines]
    columns = ["seed", "moves first", "moves second", "greedy, first", "greedy, second", "CPU s"]
    harness.print_table(f"Not lost against minimax after {TIC_TAC_TOE.steps:,} env steps", columns, rows)
    return is_met


def connect_four(seeds: int, journal: Journal) -> bool:
    """Runs connect four and prints the table."""
    lines, is_met = run_seeds("connect_four", seeds, journal, CONNECT_FOUR.identity, against_half)
    rows = [[line["seed"], *line["random"], *line["half"], line["cpu_seconds"]] for line in lines]
    columns = ["seed", "random, first", "random, second", "half, first", "half, second", "CPU s"]
    harness.print_table(f"Wins after {CONNECT_FOUR.steps:,} env steps", columns, rows)
    return is_met


def rock_paper_scissors(seeds: int, journal: Journal) -> bool:
    """Runs rock-paper-scissors and prints the table."""
    lines, is_met = run_seeds("rock_paper_scissors", seeds, journal, {"size": 64}, rock_paper_scissors_courses)
    columns = ["seed", "opponents", "mean policy", "deviation of the mean", "mean deviation of a policy", "rounds"]
    rows = [
        [line["seed"], opponents, own["mean"], own["deviation"], own["spread"], own["rounds"]]
        for line in lines
        for opponents, own in (("64 snapshots", line["snapshots"]), ("itself", line["plain"]))
    ]
    harness.print_table("Rock-paper-scissors: deviations from 1/3", columns, rows)
    return is_met


def stack(seeds: int, journal: Journal) -> bool:
    """Runs the comparison of stacks and prints the table."""
    games = {"tic_tac_toe": TIC_TAC_TOE, "connect_four": CONNECT_FOUR}
    lines = [
        journal.once(
            {"task": "stack", "game": name, "num_envs": 512}, lambda game=game: measured(lambda: stack_cost(game))
        )
        for name, game in games.items()
    ]
    columns = ["game", "1 snapshot, steps per CPU s", "8 snapshots", "ratio of CPU s", "ratio of seconds"]
    rows = [
        [line["game"], *(line[f"steps_per_cpu_s_{size}"] for size in (1, 8)), line["ratio"], line["seconds_ratio"]]
        for line in lines
    ]
    harness.print_table("Training against a stack of snapshots, 512 environments", columns, rows)
    return all(line["is_met"] for line in lines)


TASKS = {
    "tic_tac_toe": tic_tac_toe,
    "connect_four": connect_four,
    "rock_paper_scissors": rock_paper_scissors,
    "stack": stack,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TASKS, help="one task")
    parser.add_argument("--seeds", type=int, default=4, help="seeds of each learning task")
    parser.add_argument("--json", type=Path, default=JOURNAL, metavar="FILE", help="journal of finished runs")
    parsed = parser.parse_args(arguments)
    journal = Journal(parsed.json, harness.commit())
    return 0 if all([TASKS[name](parsed.seeds, journal) for name in ([parsed.only] if parsed.only else TASKS)]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
