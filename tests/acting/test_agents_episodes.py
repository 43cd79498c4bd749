"""Episodes of several agents out of what JAX environments record: for callbacks, runners, checkpoints and errors."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.acting.episode_builder import StepwiseEpisodeBuilder
from jaxrl_stack.acting.episode_forms import episodes_of_rollout
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.env.agent_mapping import module_map_of
from jaxrl_stack.env.module_pipelines import make_rollout, pure_pipelines
from jaxrl_stack.examples.envs import multi_agent
from jaxrl_stack.utils import counters

NUM_ENVS = 4
ENVS = {
    "rock_paper_scissors": (multi_agent.RockPaperScissors, {}),
    "tic_tac_toe": (multi_agent.TicTacToe, {}),
    "come_and_go": (multi_agent.ComeAndGo, {"num_agents": 4}),
}


def alternating(agent_id, episode, **kwargs):
    return f"p{int(str(agent_id)[-1]) % 2}"


def config_of(name, **model):
    env_class, env_config = ENVS[name]
    return (
        PPOConfig()
        .environment(env_class, env_config=env_config)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=alternating)
        .env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=8)
        .training(train_batch_size_per_learner=8 * NUM_ENVS, minibatch_size=8, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4], **model})
        .debugging(seed=3)
    )


def steps_of(episodes):
    """``{(env, agent): [(obs, action, reward, terminated, truncated, final obs, log-probability)]}`` in their order."""
    steps = collections.defaultdict(list)
    for index, episode in episodes:
        for agent, own in episode.agent_episodes.items():
            if not len(own):
                continue
            obs, logp = own.get_observations(), own.get_extra_model_outputs("action_logp")
            for t in range(len(own)):
                is_last = t == len(own) - 1
                ends = own.is_terminated and is_last, own.is_truncated and is_last
                row = (obs[t], own.get_actions(t), own.get_rewards(t), *ends, obs[t + 1], logp[t])
                steps[index, agent].append(row)
    return steps


@pytest.mark.parametrize("name", ["rock_paper_scissors", "tic_tac_toe", "come_and_go"])
def test_episodes_have_the_steps_that_are_learned_from(name):
    config: Any = config_of(name)
    env = config.env(config.env_config)
    module_map = module_map_of(config, env)
    pipelines = pure_pipelines(config, env, module_map)
    pure = PureModule(config.get_multi_rl_module_spec(spaces=pipelines.spaces).build(seed=0).as_multi_rl_module())
    rollout = dataclasses.replace(make_rollout(config, env, pipelines, pure, window_size=4), shows_agents=True)

    @jax.jit
    def unroll(state):
        none = {mid: {} for mid in rollout.modules}
        context = rollout.context(pure.params, pure.rest, none, counters.zero(), explore=True)
        return rollout.unroll(state, context, num_steps=7)

    state = jax.jit(lambda key: rollout.init(key, NUM_ENVS))(jax.random.key(0))
    builder = StepwiseEpisodeBuilder(episodes_of_rollout(module_map, pipelines.spaces), 1)
    expected, found, num_ended = collections.defaultdict(list), collections.defaultdict(list), 0
    for _ in range(5):
        state, record, ended = unroll(state)
        record, ended = jax.device_get((record, ended))
        finished = builder.add(record.seen)
        chunks = builder.cut()
        for _, episode in finished:
            episode.validate()
        num_ended += len(finished)
        running = [index for index in range(NUM_ENVS) if not ended.ended[-1, index]]
        for key, steps in steps_of([*finished, *zip(running, chunks, strict=True)]).items():
            found[key] += steps
        for agent, own in module_map.by_agent(record.columns, axis=1).items():
            mask = own.get(Columns.LOSS_MASK, np.ones(own[Columns.REWARDS].shape, bool))
            for t, b in np.argwhere(mask).tolist():
                names = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
                expected[b, agent].append([own[n][t, b] for n in (*names, Columns.FINAL_OBS, Columns.ACTION_LOGP)])
    assert num_ended > 4 and found.keys() == expected.keys()
    for key, steps in expected.items():
        assert len(found[key]) == len(steps) > 1
        for own, wanted in zip(found[key], steps, strict=True):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), list(own), wanted)


class Keeps(RLlibCallback):
    """Counts what it is told of, in the episodes and beside them."""

    def __init__(self):
        self.running, self.ended, self.samples = {}, [], []

    def on_episode_created(self, *, episode, env_index, **kwargs):
        assert env_index not in self.running
        self.running[env_index] = episode
        episode.custom_data["steps"] = 0

    def on_episode_start(self, *, episode, env_index, rl_module, **kwargs):
        assert self.running[env_index] is episode and len(episode) == 0 and set(rl_module.keys()) == {"p0", "p1"}

    def on_episode_step(self, *, episode, env_index, **kwargs):
        episode.custom_data["steps"] += 1
        assert self.running[env_index] is episode and len(episode) == episode.custom_data["steps"]

    def on_episode_end(self, *, episode, env_index, **kwargs):
        assert self.running.pop(env_index) is episode and episode.is_done
        self.ended.append(episode)

    def on_sample_end(self, *, samples, **kwargs):
        self.samples.append(samples)


class Logs(RLlibCallback):
    def __init__(self):
        self.log = []

    def on_episode_created(self, *, episode, env_index, **kwargs):
        episode.custom_data["made_in"] = env_index

    def on_episode_step(self, *, episode, env_index, **kwargs):
        data = {agent: (str(own.get_observations()), own.get_return()) for agent, own in episode.agent_episodes.items()}
        modules = {agent: episode.module_for(agent) for agent in data}
        self.log.append((env_index, episode.id_, len(episode), data, modules, episode.custom_data["made_in"]))


class Watched(NamedTuple):
    """An algorithm after three iterations, of which the third is evaluated."""

    algo: Algorithm
    weights: dict[str, Any]
    path: str
    results: list[dict[str, Any]]
    logs: list[list[tuple]]
    """Of `Logs`, by iteration."""


NUM_STEPS = 5
"""Steps of an iteration: episodes have more of them, so that some are running when it ends."""


def short_iterations():
    config = config_of("come_and_go").training(train_batch_size_per_learner=NUM_STEPS * NUM_ENVS)
    return config.env_runners(rollout_fragment_length=NUM_STEPS).learners(num_cpus_per_learner=2)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run, with the episodes that its callbacks saw, its weights, and its checkpoint after the first iteration."""
    config = short_iterations().callbacks([Keeps, Logs])
    algo = config.evaluation(evaluation_interval=3, evaluation_duration=3).build_algo()
    seen: Any = algo.callbacks[1]
    results, logs = [algo.train()], [seen.log]
    weights, path = algo.get_weights(), algo.save_to_path(tmp_path_factory.mktemp("watched"))
    for _ in range(2):
        seen.log = []
        results.append(algo.train())
        logs.append(seen.log)
    yield Watched(algo, weights, path, results, logs)
    algo.stop()


def test_callbacks_are_shown_the_episodes_of_training_and_evaluation_and_change_nothing(watched):
    unwatched = short_iterations().build_algo()
    unwatched.train()
    jax.tree.map(np.testing.assert_array_equal, watched.weights, unwatched.get_weights())
    unwatched.stop()
    algo, result = watched.algo, watched.results[-1]
    seen: Any = algo.callbacks[0]
    runners = result["env_runners"]
    assert len(seen.ended) == runners["num_episodes_lifetime"] > 3
    returns = [episode.get_return() for episode in seen.ended]
    assert np.mean(returns) == pytest.approx(runners["episode_return_mean"], rel=1e-5)
    for agent, mean in runners["agent_episode_returns_mean"].items():
        own = [{str(a): e.get_return() for a, e in episode.agent_episodes.items()} for episode in seen.ended]
        assert np.mean([returns[agent] for returns in own if agent in returns]) == pytest.approx(mean, rel=1e-5)
    assert {e.module_for(a) for e in seen.ended for a in e.agent_episodes} == {"p0", "p1"}
    assert len(seen.samples) == 3 and all(sum(len(e) for e in own) > 0 for own in seen.samples)
    group: Any = algo.eval_env_runner_group
    evaluated = group.local_env_runner.callbacks[0]
    assert len(evaluated.ended) == 3 and evaluated.samples == [evaluated.ended]


def test_running_episodes_go_on_from_a_checkpoint(watched):
    first, second, _ = watched.logs
    known = {entry[1] for entry in first}
    config = watched.algo.config.copy(copy_frozen=False).callbacks(Logs)
    restored = Algorithm.from_checkpoint(watched.path, config=config)
    restored.train()
    again: Any = restored.callbacks[0]

    def but_new_ids(log):
        return [(index, id_ if id_ in known else "", *rest) for index, id_, *rest in log]

    assert len(second) == NUM_STEPS * NUM_ENVS and {entry[1] for entry in second} & known
    assert but_new_ids(again.log) == but_new_ids(second)
    restored.stop()


def test_the_runner_samples_episodes_and_chunks():
    config = config_of("tic_tac_toe").env_runners(env_to_module_connector=lambda *args: MeanStdFilter())
    algo = config.build_algo()
    runner: Any = algo.env_runner
    episodes = runner.sample(num_episodes=5, random_actions=True)
    assert len(episodes) == 5 and all(episode.is_done for episode in episodes)
    for episode in episodes:
        episode.validate()
        assert {agent: episode.module_for(agent) for agent in ("player1", "player2")} == {
            "player1": "p1",
            "player2": "p0",
        }
    chunks = runner.sample(num_timesteps=3 * NUM_ENVS)
    more = {chunk.id_: chunk for chunk in runner.sample(num_timesteps=2 * NUM_ENVS)}
    going_on = [chunk for chunk in chunks if not chunk.is_done]
    assert going_on and all(more[chunk.id_].env_t_started == chunk.env_t for chunk in going_on)
    assert runner.get_metrics()["num_episodes"].peek() >= 5
    algo.stop()


class Broken(multi_agent.RockPaperScissors):
    """The second player gets NaN for its fifth move, in the environment whose first one was 1."""

    def step_env(self, key, state, action, params):
        obs, after, rewards, *rest = super().step_env(key, state, action, params)
        rewards["player2"] = jnp.where(state == 4, jnp.nan, rewards["player2"])
        return obs, after, rewards, *rest


@pytest.mark.parametrize("callbacks", [RLlibCallback, Keeps])
def test_what_is_not_finite_is_said_to_be_of_its_agent(callbacks):
    config = config_of("rock_paper_scissors").environment(Broken).callbacks(callbacks).learners(num_cpus_per_learner=2)
    algo = config.debugging(check_nans=True).build_algo()
    with pytest.raises(ValueError, match=r"Environment 0 of 4 .*a reward.*of agent 'player2', in step 4 of the 8"):
        algo.train()
    algo.stop()
