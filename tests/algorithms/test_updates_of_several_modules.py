"""Updates from rows of several modules, as replays of several agents draw them: DQN, SAC and TQC."""

import itertools

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.tqc import TQCConfig
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.utils.devices import host_view

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
NUM_ROWS = 8
TARGETS = {"tau": 0.5, "target_network_update_freq": 0}
MODEL = {"fcnet_hiddens": [4], "head_fcnet_hiddens": [], "fusionnet_hiddens": None}
CASES = {
    "dqn": (DQNConfig, DISCRETE, {}),
    "sac": (SACConfig, BOX, {}),
    "tqc": (TQCConfig, BOX, {"n_critics": 2, "n_quantiles": 3, "top_quantiles_to_drop_per_net": 1}),
}


class Case:
    """Learners of one algorithm, and rows for them."""

    def __init__(self, config_class, actions, training):
        self.config_class, self.actions, self.training = config_class, actions, training
        self.both = self.learner("p0", "p1")
        self.start = self.both.get_state()

    def restarted(self):
        """A learner of two modules, as it was built."""
        self.both.set_state(self.start)
        return self.both

    def learner(self, *module_ids):
        """A learner of these modules."""
        model = {name: MODEL[name] for name in ("fcnet_hiddens", "head_fcnet_hiddens")}
        if self.config_class is not DQNConfig:
            model = {name: MODEL[name] for name in ("fcnet_hiddens", "fusionnet_hiddens")}
        config = (
            self.config_class()
            .environment(observation_space=OBS, action_space=self.actions)
            .training(**TARGETS, **self.training)
            .rl_module(model_config=model)
            .debugging(seed=1)
        )
        spec = config.get_default_rl_module_spec()
        own = {
            mid: RLModuleSpec(
                spec.module_class, OBS, self.actions, False, False, config.model_config | model, spec.catalog_class
            )
            for mid in module_ids
        }
        learner = config.learner_class(config=config, module_spec=MultiRLModuleSpec(rl_module_specs=own))
        learner.build()
        return learner

    def rows(self, seed, **columns):
        """Rows of one module."""
        rng = np.random.default_rng(seed)
        is_box = self.actions is BOX
        return {
            "obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
            "new_obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
            "actions": rng.uniform(-1, 1, (NUM_ROWS, 2)).astype(np.float32)
            if is_box
            else rng.integers(3, size=NUM_ROWS),
            "rewards": rng.normal(size=NUM_ROWS).astype(np.float32),
            "terminateds": rng.random(NUM_ROWS) < 0.3,
            "truncateds": np.zeros(NUM_ROWS, bool),
            "n_step": np.ones(NUM_ROWS, np.float32),
            "weights": rng.uniform(0.5, 1.0, NUM_ROWS).astype(np.float32),
            **columns,
        }


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return Case(*CASES[request.param])


def of_module(learner, mid):
    """Everything that a learner's state has of a module."""
    state = jax.device_get(host_view(learner.state))
    parts = (
        {ref: own for ref, own in part.items() if ref.startswith(f"{mid}/")} for part in (state.params, state.rest)
    )
    return (*map(_raw, parts), state.optimizers[mid], {name: own[mid] for name, own in state.extra.items()})


def _raw(part):
    is_key = {ref: jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.prng_key) for ref, x in part.items()}
    return {ref: jax.random.key_data(x) if is_key[ref] else x for ref, x in part.items()}


def differences(before, after):
    pairs = zip(*(jax.tree_util.tree_leaves_with_path(x) for x in (before, after)), strict=True)
    return [jax.tree_util.keystr(path) for (path, one), (_, other) in pairs if not np.array_equal(one, other)]


def test_modules_learn_what_they_learn_alone(case):
    batches = [{"p0": case.rows(2 * number), "p1": case.rows(2 * number + 1)} for number in range(3)]

    def learned(learner, *module_ids):
        """Logged values of updates from rows of these modules, and the whole state of the modules after them."""
        own = [{mid: batch[mid] for mid in module_ids} for batch in batches]
        logged = [learner.update_rows(Experience.of_rows(rows), timesteps=n) for n, rows in enumerate(own)]
        assert all({mid for mid, _ in each} == set(module_ids) for each in logged)
        return {
            mid: (
                [each[mid, "td_error"] for each in logged],
                of_module(learner, mid),
                *learner.row_results()[mid].items(),
            )
            for mid in module_ids
        }

    together = learned(case.restarted(), "p0", "p1")
    for mid in ("p0", "p1"):
        assert differences(together[mid], learned(case.restarted(), mid)[mid]) == []
    if case.config_class is DQNConfig:
        # Losses that draw numbers do it from the keys of their place among the modules.
        assert differences(together["p1"], learned(case.learner("p1"), "p1")["p1"]) == []


def test_a_module_without_rows_stays_as_it_is(case):
    learner = case.restarted()
    none, some = np.zeros(NUM_ROWS, bool), np.arange(NUM_ROWS) < 3
    trained = dict.fromkeys(("p0", "p1"), 0)
    seeds = itertools.count()

    def changed(**masks):
        """Modules that an update has changed, and its results."""
        before = {mid: of_module(learner, mid) for mid in trained}
        batch = {
            mid: case.rows(next(seeds), **({} if mask is None else {"loss_mask": mask})) for mid, mask in masks.items()
        }
        learner.update_rows(Experience.of_rows(batch), timesteps=9)
        results = learner.row_results()
        for mid, mask in masks.items():
            number = 0 if mask is none else NUM_ROWS
            trained[mid] += number
            assert results[mid]["num_module_steps_trained"] == number
            assert results[mid]["num_module_steps_trained_lifetime"] == trained[mid]
        return {mid for mid in trained if differences(before[mid], of_module(learner, mid))}

    assert changed(p0=None, p1=None) == {"p0", "p1"}
    assert changed(p0=None) == {"p0"}
    assert changed(p0=some, p1=none) == {"p0"}
    assert changed(p0=none, p1=some) == {"p1"}
    assert changed(p0=none, p1=none) == set()
    assert changed(p0=some, p1=some) == {"p0", "p1"}
