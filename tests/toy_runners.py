"""Env runners without environments, for tests of groups of actors: on Ray, and on `tests.fake_actors.FakeActors`."""

from __future__ import annotations

import os
import time

import numpy as np

from envs.faulty import FaultyEnvError
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.env_runner import EnvRunner
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.utils.actor_backend import RAY


class ToyRunner(EnvRunner):
    """Remembers the states that it got, and samples numbers; each sample takes `slow` virtual seconds."""

    def __init__(self, *, config, worker_index=0, num_workers=0, spaces=None, broken=0):
        if broken and worker_index == broken:
            raise LookupError("no such environment")
        super().__init__(config=config, worker_index=worker_index)
        self.num_workers, self.given_spaces = num_workers, spaces
        self.state = {
            "rl_module": {"params": {"a/w": np.zeros(2), "b/w": np.zeros(2)}, "rest": {}},
            "weights_seq_no": 0,
        }
        self.num_samples, self.slow = 0, 0.0

    def sample(self, **kwargs):
        self.num_samples += 1
        if self.slow:
            from tests.fake_actors import work

            work(self.slow)
        return [[0] * kwargs["num_timesteps"]]

    def sample_block(self, *, num_steps):
        self.sample(num_timesteps=num_steps)
        return (self.worker_index, self.num_samples, num_steps)

    def make_env(self):
        pass

    def make_module(self):
        pass

    def get_metrics(self):
        return {"num_samples": self.num_samples}

    def get_spaces(self):
        return {"__env__": self.worker_index}

    def get_state(self, components=None, *, not_components=None):
        return {name: part for name, part in self.state.items() if components is None or name in components}

    def set_state(self, state):
        if state.get("bad"):
            raise ValueError("unknown part 'bad'")
        state = {"rl_module": {"params": {}, "rest": {}}, **state}
        modules = {part: {**own, **state["rl_module"][part]} for part, own in self.state["rl_module"].items()}
        self.state = {**self.state, **state, "rl_module": modules}
        self.weights_seq_no = self.state["weights_seq_no"]

    def reset(self, config):
        self.config = config

    def change_settings(self, settings):
        self.config = {**self.config, **settings}

    def pid(self):
        return os.getpid()


def toy_config(**fault_tolerance):
    """Two `ToyRunner`."""
    config = PPOConfig().environment("CartPole-v1")
    config.env_runners(env_runner_cls=ToyRunner, num_env_runners=2, num_cpus_per_env_runner=0.5)
    return config.fault_tolerance(**fault_tolerance)


class FailingRunner(EnvRunner):
    """Samples numbers; fails in those of its samples that `plan` names for its index, alive for so many times.

    It starts again in ``plan["restart_s"]`` seconds.
    """

    def __init__(self, *, config, worker_index=0, num_workers=0, plan=None):
        from jaxrl_stack.utils.actor_setup import was_actor_restarted

        super().__init__(config=config, worker_index=worker_index)
        time.sleep(was_actor_restarted() * (plan or {}).get("restart_s", 0.0))
        self.plan = (plan or {}).get((worker_index, was_actor_restarted()), ())
        self.samples, self.calls = 0, []

    def sample_block(self, *, num_steps):
        self.samples += 1
        if self.plan == "all" or self.samples in self.plan:
            raise FaultyEnvError(f"sample {self.samples} of runner {self.worker_index}")
        return self.worker_index

    def sample(self, **kwargs):
        raise NotImplementedError

    def make_env(self):
        pass

    def make_module(self):
        pass

    def get_metrics(self):
        return {}

    def get_spaces(self):
        return {}

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {}

    def set_state(self, state):
        self.calls.append(("state", state["weights_seq_no"]))

    def on_restarted(self, num_restarts):
        self.calls.append(("restarted", num_restarts))


def failing_group(num_env_runners, plan, *, backend=RAY, is_evaluation=False, **fault_tolerance):
    """A group of `FailingRunner` actors."""
    settings = PPOConfig().environment("CartPole-v1")
    settings.env_runners(env_runner_cls=FailingRunner, num_cpus_per_env_runner=0.25)
    settings.fault_tolerance(**fault_tolerance)
    return EnvRunnerGroup(
        False,
        config=settings,
        num_env_runners=num_env_runners,
        is_evaluation=is_evaluation,
        # Actors without the real config need not import what it consists of.
        env_runner_kwargs={"config": None, "plan": plan},
        backend=backend,
    )


def sample_blocks(group, number, num_steps=None, **kwargs):
    """`number` samples."""
    return group.sample("sample_block", [{"num_steps": num_steps}] * number, **kwargs)


def change(group, **fault_tolerance):
    """Give a group other settings, and return its config."""
    group.config = group.config.copy(copy_frozen=False).fault_tolerance(**fault_tolerance)
    return group.config


def reset_and_send(group):
    """Reset a group of two `ToyRunner` actors and a local one that were given states and asked for samples before.

    Then change a setting, and send weights twice, the second time with the state of a connector.
    """
    group.sync_weights(weights={"params": {}, "rest": {}}, weights_seq_no=7, more_state={"of the run before": 3})
    assert group.request("sample_block", {"num_steps": 1}) == 2
    config = toy_config()
    # Anything does that can be told apart where the config's class is unknown.
    group.reset_env_runners({"lr": 0.1, "gamma": 0.5})
    group.change_settings(config.copy().training(lr=0.2), ("lr",))
    assert group.foreach_env_runner(lambda runner: runner.config["lr"]) == [0.2] * 3
    group.config = config
    # What was asked for before the reset does not come any more, and nothing is in the way of new requests.
    assert group.collect("sample_block", {"num_steps": 1}, timeout_seconds=0.5) == []
    assert group.request("sample_block", {"num_steps": 1}) == 2
    assert group.collect("sample_block", {"num_steps": 1}, timeout_seconds=30.0)
    group.sync_weights(weights={"params": {"a/w": np.full(2, 4.0)}, "rest": {}}, weights_seq_no=1)
    more = {"env_to_module_connector": {"F": np.ones(1)}}
    group.sync_weights(weights={"params": {"a/w": np.full(2, 8.0)}, "rest": {}}, weights_seq_no=2, more_state=more)


def check_restored(group, actor_id):
    """Check that an actor, which came back, has what `reset_and_send` has sent."""
    state = group.foreach_env_runner("get_state", remote_worker_ids=[actor_id])[1]
    assert state["rl_module"]["params"]["a/w"][0] == 8.0 and state["weights_seq_no"] == 2
    assert state["env_to_module_connector"]["F"][0] == 1.0
    # It is a runner of the config that all were reset to, and knows nothing of before.
    assert "of the run before" not in state
    (told,) = group.foreach_env_runner(
        lambda runner: runner.config, local_env_runner=False, remote_worker_ids=[actor_id]
    )
    assert told == {"lr": 0.2, "gamma": 0.5}


def check_dropped_if_ignored(group):
    """Check that one of two lost actors is left out when losses are ignored."""
    group.config = toy_config(restart_failed_env_runners=False, ignore_env_runner_failures=True)
    group.foreach_env_runner("ping", healthy_only=False)
    assert group.num_env_runners_dropped_lifetime() == 1 and group.num_remote_env_runners() == 1
    assert [block[0] for block in sample_blocks(group, 3, num_steps=1)] == [1, 1, 1]
