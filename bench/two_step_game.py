"""Returns of greedy teams in the two-step game: VDN, which sums Q-values, and independent Q-learning.

python -m bench.two_step_game [--seeds 5] [--steps 60000]
"""

from __future__ import annotations

import argparse

from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.examples.algorithms.classes.vdn import VDNConfig
from jaxrl_stack.examples.learners.classes.vdn_learner import IndependentQLearner, VDNLearner

STEPS_PER_ITERATION = 6400


def trained_return(learner_class: type[Learner], seed: int, num_steps: int) -> tuple[int, float]:
    """Trains for at most `num_steps` steps; returns ``(sampled steps, mean return of 10 greedy episodes)``."""
    algo = (
        VDNConfig()
        .environment("jaxrl_stack.examples.envs.multi_agent:TwoStepGame")
        .env_runners(num_envs_per_env_runner=32, rollout_fragment_length=2)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{agent_id}")
        .training(train_batch_size_per_learner=64, lr=5e-3, gamma=0.99)
        .learners(learner_class=learner_class)
        .reporting(min_sample_timesteps_per_iteration=STEPS_PER_ITERATION)
        .evaluation(evaluation_config={"explore": False}, evaluation_duration=10)
        .debugging(seed=seed)
        .build_algo()
    )
    for _ in range(num_steps // STEPS_PER_ITERATION):
        algo.train()
    found = algo.num_env_steps_sampled_lifetime, algo.evaluate()["env_runners"]["episode_return_mean"]
    algo.stop()
    return found


def main() -> None:
    """Trains both algorithms, and prints their returns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60_000)
    args = parser.parse_args()
    for learner_class in (VDNLearner, IndependentQLearner):
        found = [trained_return(learner_class, seed, args.steps) for seed in range(args.seeds)]
        print(f"{learner_class.__name__}: {found[0][0]} steps, returns {[value for _, value in found]}", flush=True)


if __name__ == "__main__":
    main()
