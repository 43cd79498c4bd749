"""Write `replay_golden.json`: what RLlib's own replay buffers do with data in which every number says where it is from.

Needs an environment of its own with `ray[rllib]==2.60.0` and torch (CPU); imports nothing of this project:

    python tests/replay/make_replay_golden.py --out tests/replay/replay_golden.json

Episode e of `episodes` ([length, terminated, truncated]) has observations [e, t], actions t and rewards 100 e + t. All
of them are added in order; episode 3 comes in two chunks. Buffers get the generator `default_rng(seed)` before
every sample.

meta          versions, command
episodes      see above
transitions   [{n_step, seed, items}] of EpisodeReplayBuffer; item = [e, t, last t, reward (gamma 0.5)]
rows          [{seed, columns}] of EpisodeReplayBuffer.sample(1, batch_length_T=12)
sequences     {seed, items} of sample(30, n_step=1, batch_length_T=4, lookback=2, sample_episodes=True); item =
              [e, t_started, length, terminated, truncated]
prioritized   [{alpha, beta, n_step, seed, rounds}]: three samples of 32 items, each followed by
              update_priorities(t + 1 of every item); round = [[e, t, weight], ...]
sizes         class name -> [[num_episodes, num_timesteps, num_episodes_evicted, added timesteps], ...] after each of
              `size_steps` = [[id, t_started, length, terminated], ...], capacity 40
metrics       class name -> names of get_metrics() after an add and a sample, nested ones joined by "/"
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
import ray
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

EPISODES = [[5, True, False], [1, True, False], [9, False, True], [12, True, False], [7, False, False]]
SIZE_STEPS = [
    *([["a", 0, 15, True], ["b", 0, 10, True], ["c", 0, 12, False], ["c", 12, 5, False], ["c", 17, 3, True]]),
    *([["d", 0, 1, True], ["e", 0, 30, True], ["f", 0, 9, True], ["g", 0, 2, False]]),
]


def chunk(e: int, first: int, last: int, terminated: bool, truncated: bool, name: str | None = None):
    return SingleAgentEpisode(
        id_=name or str(e),
        observations=[np.array([e, t], np.float32) for t in range(first, last + 1)],
        actions=list(range(first, last)),
        rewards=[100.0 * e + t for t in range(first, last)],
        terminated=terminated,
        truncated=truncated,
        t_started=first,
        len_lookback_buffer=0,
    )


def filled(buffer):
    for e, (length, terminated, truncated) in enumerate(EPISODES):
        if e == 3:
            buffer.add(chunk(e, 0, 4, False, False))
            buffer.add(chunk(e, 4, length, terminated, truncated))
        else:
            buffer.add(chunk(e, 0, length, terminated, truncated))
    return buffer


def at(episode) -> tuple[list[int], list[int]]:
    first, last = episode.get_observations(0), episode.get_observations(-1)
    return [int(x) for x in first], [int(x) for x in last]


def transitions(n_step: int, seed: int):
    buffer = filled(EpisodeReplayBuffer(1000))
    buffer.rng = np.random.default_rng(seed)
    items = []
    for episode in buffer.sample(48, n_step=n_step, gamma=0.5, sample_episodes=True):
        (e, t), (_, end) = at(episode)
        items.append([e, t, end, float(episode.get_rewards(0))])
    return {"n_step": n_step, "seed": seed, "items": items}


def rows(seed: int):
    buffer = filled(EpisodeReplayBuffer(1000))
    buffer.rng = np.random.default_rng(seed)
    batch = buffer.sample(1, batch_length_T=12)
    return {"seed": seed, "columns": {name: column.tolist() for name, column in batch.items()}}


def sequences(seed: int):
    buffer = filled(EpisodeReplayBuffer(1000))
    buffer.rng = np.random.default_rng(seed)
    sample = buffer.sample(30, n_step=1, batch_length_T=4, lookback=2, sample_episodes=True, to_numpy=True)
    items = [[at(x)[0][0], x.t_started, len(x), x.is_terminated, x.is_truncated] for x in sample]
    return {"seed": seed, "items": items}


def prioritized(alpha: float, beta: float, n_step: int, seed: int):
    buffer = filled(PrioritizedEpisodeReplayBuffer(1000, alpha=alpha))
    buffer.rng = np.random.default_rng(seed)
    rounds = []
    for _ in range(3):
        sample = buffer.sample(32, n_step=n_step, beta=beta)
        items = [[*at(x)[0], float(x.get_extra_model_outputs("weights", 0))] for x in sample]
        rounds.append(items)
        buffer.update_priorities(np.array([t + 1.0 for _, t, _ in items]))
    return {"alpha": alpha, "beta": beta, "n_step": n_step, "seed": seed, "rounds": rounds}


def sizes(buffer):
    counts = []
    for name, first, length, terminated in SIZE_STEPS:
        buffer.add(chunk(ord(name), first, first + length, terminated, False, name))
        counts.append(
            [
                buffer.get_num_episodes(),
                buffer.get_num_timesteps(),
                buffer.get_num_episodes_evicted(),
                buffer.get_added_timesteps(),
            ]
        )
    return counts


def metrics(buffer):
    filled(buffer).sample(4, n_step=2, sample_episodes=True)
    names = []

    def collect(tree, path):
        for name, item in tree.items():
            if isinstance(item, dict):
                collect(item, [*path, name])
            else:
                names.append("/".join([*path, name]))

    collect(buffer.get_metrics(), [])
    return sorted(names)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    classes = (EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer)
    golden = {
        "meta": {
            "ray": ray.__version__,
            "numpy": np.__version__,
            "python": sys.version.split()[0],
            "command": "python tests/replay/make_replay_golden.py --out <this file>",
        },
        "episodes": EPISODES,
        "transitions": [transitions(n_step, seed) for n_step, seed in ((1, 0), (3, 1))],
        "rows": [rows(seed) for seed in range(6)],
        "sequences": sequences(2),
        "prioritized": [prioritized(1.0, 0.4, 1, 3), prioritized(0.6, 1.0, 1, 4), prioritized(0.6, 0.5, 3, 5)],
        "size_steps": SIZE_STEPS,
        "sizes": {cls.__name__: sizes(cls(40)) for cls in classes},
        "metrics": {cls.__name__: metrics(cls(1000)) for cls in classes},
    }
    with open(out, "w") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in golden.items()) + "\n}\n")


if __name__ == "__main__":
    main()
