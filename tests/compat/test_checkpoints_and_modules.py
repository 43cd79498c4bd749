"""Scripts in RLlib's patterns: checkpoints and modules."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.tqc import TQCConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.checkpoints import needed_code
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.env.jax_env import AutoResetJaxEnv
from jaxrl_stack.tune import trainable
from jaxrl_stack.utils import notices
from jaxrl_stack.utils.checkpoints import get_checkpoint_info


class Buttons(gym.Env):
    """Press the lit one of two buttons; an episode is four presses."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config=None):
        self._presses = 0

    def _lit(self):
        self._light = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._light]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._presses = 0
        return self._lit(), {}

    def step(self, action):
        reward = float(action == self._light)
        self._presses += 1
        return self._lit(), reward, self._presses == 4, False, {}


class Counting(RLlibCallback):
    def __init__(self):
        self.num_results = 0

    def on_train_result(self, *, result, **kwargs):
        self.num_results += 1


def tiny() -> PPOConfig:
    return (
        PPOConfig()
        .environment(Buttons)
        .training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .callbacks(Counting)
    )


def weights_of(algorithm) -> dict[str, np.ndarray]:
    return algorithm.get_module(DEFAULT_MODULE_ID).get_state()


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """``(algorithm, folder)`` of one that has trained an iteration; tests leave it as it is."""
    algorithm = tiny().build_algo()
    algorithm.train()
    path = tmp_path_factory.mktemp("trained") / "checkpoint"
    algorithm.save_to_path(path)
    yield algorithm, path
    algorithm.stop()


# --------------------------------------------------------------------------------------------------------- checkpoints


def test_rays_checkpoint_is_taken_wherever_a_path_is(trained):
    from ray import tune  # takes seconds, which collecting this file need not

    algorithm, path = trained
    checkpoint = tune.Checkpoint.from_directory(str(path))
    loaded = Algorithm.from_checkpoint(checkpoint, config=tiny())
    try:
        assert loaded.iteration == 1 and same(weights_of(loaded), weights_of(algorithm))
        loaded.train()
        assert not same(weights_of(loaded), weights_of(algorithm))
        loaded.restore(checkpoint)
        assert loaded.iteration == 1 and same(weights_of(loaded), weights_of(algorithm))
    finally:
        loaded.stop()
    assert get_checkpoint_info(checkpoint)["type"] == "Algorithm"


def test_tunes_names_save_and_load_a_checkpoint(trained, tmp_path):
    algorithm, path = trained
    loaded = []
    own = Algorithm.from_checkpoint(path, config=tiny().callbacks(on_checkpoint_loaded=lambda **_: loaded.append(1)))
    try:
        own.set_weights({DEFAULT_MODULE_ID: {n: w * 0.0 for n, w in own.get_weights()[DEFAULT_MODULE_ID].items()}})
        assert algorithm.save_checkpoint(str(tmp_path / "saved")) is None
        assert own.load_checkpoint(checkpoint_dir=str(tmp_path / "saved")) is None
        assert own.iteration == 1 and same(weights_of(own), weights_of(algorithm)) and loaded == [1, 1]
    finally:
        own.stop()
    assert get_checkpoint_info(tmp_path / "saved")["type"] == "Algorithm"


def test_the_first_callback_of_an_algorithm_is_at_index_0(trained):
    algorithm, _ = trained
    assert isinstance(algorithm.callbacks[0], Counting) and algorithm.callbacks[0].num_results == 1
    assert [type(callback) for callback in algorithm.callbacks] == [Counting]


class Doubling(DefaultPPORLModule):
    """The default module with twice the logits."""

    def _forward(self, batch, **kwargs):
        out = super()._forward(batch, **kwargs)
        return out | {Columns.ACTION_DIST_INPUTS: 2.0 * out[Columns.ACTION_DIST_INPUTS]}


class MyPPO(PPO):
    pass


@pytest.fixture(scope="module")
def of_a_script(tmp_path_factory):
    """A checkpoint that names a user's algorithm, module, callbacks and environment, and holds no lambdas."""
    config = tiny().rl_module(rl_module_spec=RLModuleSpec(module_class=Doubling))
    config.algo_class = MyPPO
    config.env_runners(env_to_module_connector=lambda env, spaces, device: [MeanStdFilter()])
    algorithm = config.build_algo()
    algorithm.train()
    path = algorithm.save_to_path(tmp_path_factory.mktemp("script") / "checkpoint")
    algorithm.stop()
    return Path(path), config


def test_the_config_of_the_script_says_which_classes_and_lambdas_load(of_a_script, monkeypatch):
    path, config = of_a_script
    monkeypatch.setattr(needed_code, "_written_here", {})  # as in another process
    with pytest.raises(ValueError, match="MyPPO"):
        Algorithm.from_checkpoint(path)
    loaded = Algorithm.from_checkpoint(path, config=config)
    assert (type(loaded), type(loaded.get_module())) == (MyPPO, Doubling)
    assert "MeanStdFilter" in loaded.get_state()["env_runner"]["env_to_module_connector"] and loaded.iteration == 1
    loaded.train()
    loaded.stop()


def test_classes_of_the_running_script_load_by_themselves(of_a_script, monkeypatch, tmp_path):
    # As if this file were the script.
    main = sys.modules["__main__"]
    for cls in (Buttons, Counting, Doubling, MyPPO):
        monkeypatch.setattr(cls, "__module__", "__main__")
        monkeypatch.setattr(main, cls.__name__, cls, raising=False)
    config = of_a_script[1].copy(copy_frozen=False).env_runners(env_to_module_connector=None)
    algorithm = config.build_algo()
    path = Path(algorithm.save_to_path(tmp_path / "checkpoint"))
    loaded = Algorithm.from_checkpoint(path)
    assert (type(loaded), type(loaded.get_module()), loaded.config.env) == (MyPPO, Doubling, Buttons)
    assert isinstance(loaded.callbacks[0], Counting) and same(weights_of(loaded), weights_of(algorithm))
    loaded.stop()
    algorithm.stop()
    module = RLModule.from_checkpoint(path / "learner_group" / "learner" / "rl_module" / DEFAULT_MODULE_ID)
    assert type(module) is Doubling


def test_a_trial_says_once_that_its_checkpoints_hold_no_lambda_and_restores_it_all_the_same(
    tmp_path, caplog, monkeypatch
):
    # Another test of this process may have been told the same.
    monkeypatch.setattr(notices, "_given", set())
    trial = object.__new__(trainable("PPO"))  # without what Trainable.__init__ writes to the home directory
    trial.setup(tiny().callbacks(on_train_result=lambda *, result, **kwargs: result.update(mark=1)).to_dict())
    with caplog.at_level("WARNING"):
        for i in range(3):
            assert trial.step()["mark"] == 1
            trial.save_checkpoint(str(tmp_path / str(i)))
    told = [record.message for record in caplog.records if "on_train_result (a lambda of " in record.message]
    assert len(told) == 1 and "config=" in told[0]
    trial.load_checkpoint(str(tmp_path / "0"))
    assert (trial.algorithm.iteration, trial.step()["mark"]) == (1, 1)
    trial.cleanup()


# ------------------------------------------------------------------------------------------------------------- actions


NUMBER = gym.spaces.Box(-1.0, 1.0, (), np.float32)


class NumberInNest(gym.Env):
    """The reward is the one part of the action that is a number without axes."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Dict(
        a=gym.spaces.Discrete(2), b=gym.spaces.Tuple((NUMBER, gym.spaces.Box(0.0, 2.0, (2,), np.float32)))
    )

    def __init__(self, config=None):
        self._count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        # gymnasium warns of numbers that are no arrays, as which an element of this space comes.
        assert self.action_space.contains(action), action
        self._count += 1
        return np.ones(2, np.float32), float(action["b"][0]), self._count == 4, False, {}


class NumberInJax(AutoResetJaxEnv):
    @property
    def observation_space(self):
        return NumberInNest.observation_space

    @property
    def action_space(self):
        return NUMBER

    def reset_env(self, key, params):
        return jnp.zeros(2), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return jnp.ones(2), state + 1, action, state == 3, False, {}


@pytest.mark.parametrize(("env", "number_in"), [(NumberInNest, lambda a: a["b"][0]), (NumberInJax, lambda a: a)])
def test_actions_of_boxes_without_axes_are_numbers(env, number_in):
    algorithm = tiny().environment(env).build_algo()
    before = weights_of(algorithm)
    result = algorithm.train()
    assert -4.0 <= result["env_runners"]["episode_return_mean"] <= 4.0 and not same(before, weights_of(algorithm))
    assert np.shape(number_in(algorithm.compute_single_action(np.zeros(2, np.float32)))) == ()
    algorithm.stop()


# ------------------------------------------------------------------------------------------------------------- modules


class Remembering(DefaultPPORLModule):
    def get_initial_state(self):
        return {"h": np.zeros(3, np.float32)}


@pytest.mark.parametrize("env", [Buttons, NumberInJax])
def test_a_module_that_returns_no_recurrent_state_is_refused_when_the_algorithm_is_built(env):
    config = tiny().environment(env).rl_module(rl_module_spec=RLModuleSpec(module_class=Remembering))
    with pytest.raises(ValueError, match="Remembering.*also 'state_out', because get_initial_state"):
        config.build_algo()


def spec_of(**model_config) -> RLModuleSpec:
    return RLModuleSpec(
        module_class=DefaultPPORLModule,
        observation_space=Buttons.observation_space,
        action_space=Buttons.action_space,
        model_config={"fcnet_hiddens": [4], **model_config},
    )


@pytest.mark.parametrize("shares", [True, False])
def test_the_encoders_of_policy_and_value_function_have_rllibs_names(shares):
    encoder: Any = vars(spec_of(vf_share_layers=shares).build(seed=0))["encoder"]
    assert (encoder.actor_encoder is encoder.critic_encoder) is shares
    assert encoder.actor_encoder is (encoder.shared if shares else encoder.actor)


def test_weights_of_a_module_that_was_built_alone_go_into_an_algorithm(tmp_path):
    alone = spec_of().build(seed=1)
    path = alone.save_to_path(tmp_path / "alone")
    config = tiny().rl_module(rl_module_spec=RLModuleSpec(load_state_path=path))
    with pytest.raises(ValueError, match=r"saved with vf_share_layers=True, and this module has False.*both"):
        config.build_algo()
    algorithm = config.rl_module(model_config={"fcnet_hiddens": [4], "vf_share_layers": True}).build_algo()
    assert same(weights_of(algorithm), alone.get_state())
    algorithm.stop()


def test_a_default_model_config_gives_one_network_alone_and_in_an_algorithm(tmp_path):
    spec = replace(spec_of(), model_config=DefaultModelConfig(fcnet_hiddens=[4]))
    alone = spec.build(seed=1)
    path = alone.save_to_path(tmp_path / "alone")
    algorithm = tiny().rl_module(rl_module_spec=replace(spec, load_state_path=path)).build_algo()
    assert same(weights_of(algorithm), alone.get_state())
    algorithm.stop()


class WithoutEncoder(DefaultPPORLModule):
    def setup(self):
        self.pi = nnx.Linear(2, 2, rngs=self.rngs)


def test_weights_that_do_not_fit_a_module_of_ones_own_are_refused_without_that_hint(tmp_path):
    path = spec_of().build(seed=1).save_to_path(tmp_path / "default")
    with pytest.raises(ValueError, match="does not fit this WithoutEncoder: the checkpoint lacks the value pi/bias"):
        replace(spec_of(), module_class=WithoutEncoder, load_state_path=path).build(seed=1)
    with pytest.raises(ValueError, match="needs a class.*where MyRLModule extends RLModule"):
        replace(spec_of(), module_class=cast(Any, "MyModule")).build()


class OwnMulti(MultiRLModule):
    pass


def test_specs_of_several_modules_come_back_from_what_they_build():
    spec = MultiRLModuleSpec(
        multi_rl_module_class=OwnMulti,
        rl_module_specs={name: replace(spec_of(), catalog_class=PPOCatalog) for name in ("one", "two")},
    )
    spec["two"].learner_only = True
    module = spec.build(seed=0)
    assert isinstance(module, MultiRLModule) and MultiRLModuleSpec.from_module(module) == spec
    new = spec_of()
    spec.update(MultiRLModuleSpec(rl_module_specs={"one": new, "three": new}), override=True)
    assert [name in spec for name in ("one", "two", "three")] == [True, True, True]
    # All of it: what is None in the new one, too.
    assert spec["one"] is new and spec["one"].catalog_class is None and spec["two"].learner_only
    other = replace(spec_of(fcnet_hiddens=[9]), catalog_class=PPOCatalog)
    spec.update(MultiRLModuleSpec(rl_module_specs={"one": other}), override=False)
    assert spec["one"].model_config == {"fcnet_hiddens": [4]} and spec["one"].catalog_class is PPOCatalog


# ------------------------------------------------------------------------------------------------------ RLlib's weights

WEIGHTS = Path(__file__).parents[1] / "reference" / "rllib_weights"
OUTPUTS = np.load(WEIGHTS / "outputs.npz")
CLOSE: Any = {"rtol": 1e-5, "atol": 1e-5}
HEAD = {"fcnet_hiddens": [8, 6], "head_fcnet_hiddens": [5]}
FOUR = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
THREE, PAIR = gym.spaces.Discrete(3), gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
SHARED = {"vf_share_layers": True, "free_log_std": True, "fcnet_use_layernorm": True}
IMAGES = gym.spaces.Box(-1.0, 1.0, (10, 10, 2), np.float32)
CONVOLUTIONS = {"conv_filters": [[3, 4, 2], [4, [3, 2], 2, "valid"]]}
# As in make_rllib_weights.py.
OF_RLLIB = {
    "ppo_separate": (PPOConfig, THREE, HEAD),
    "ppo_shared": (PPOConfig, PAIR, HEAD | SHARED),
    "dqn_dueling": (DQNConfig, THREE, HEAD),
    "sac_box": (SACConfig, PAIR, HEAD | {"fusionnet_hiddens": [7, 6]}),
    "sac_discrete": (SACConfig, THREE, {"fcnet_hiddens": [8], "head_fcnet_hiddens": []}),
    "tqc_box": (TQCConfig, PAIR, HEAD | {"fusionnet_hiddens": [7, 6]}),
    "ppo_cnn": (PPOConfig, THREE, CONVOLUTIONS | {"head_fcnet_hiddens": [5]}),
    "dqn_cnn": (DQNConfig, THREE, CONVOLUTIONS | {"conv_activation": "tanh"}),
    "sac_box_cnn": (SACConfig, PAIR, CONVOLUTIONS | {"fcnet_hiddens": [4], "fusionnet_hiddens": [7]}),
    "sac_discrete_cnn": (SACConfig, THREE, CONVOLUTIONS | {"head_fcnet_hiddens": [5]}),
    "tqc_box_cnn": (TQCConfig, PAIR, CONVOLUTIONS | {"fcnet_hiddens": [4], "fusionnet_hiddens": [7]}),
    "appo": (APPOConfig, THREE, HEAD),
}


def module_of(case: str, *, inference_only: bool = False) -> Any:
    config_class, action_space, model_config = OF_RLLIB[case]
    config = config_class().rl_module(model_config=model_config)
    spaces = {DEFAULT_MODULE_ID: (IMAGES if case.endswith("_cnn") else FOUR, action_space)}
    spec = config.get_multi_rl_module_spec(spaces=spaces)[DEFAULT_MODULE_ID]
    spec.inference_only = inference_only
    return spec.build(seed=0)


def agree(case: str, name: str, value) -> None:
    np.testing.assert_allclose(value, OUTPUTS[f"{case}/{name}"], **CLOSE, err_msg=name)


@pytest.mark.parametrize("case", OF_RLLIB)
def test_a_module_with_rllibs_weights_computes_what_rllibs_does(case):
    module = module_of(case)
    module.load_rllib_weights(WEIGHTS / f"{case}.npz")
    batch = {Columns.OBS: OUTPUTS[f"{case}/obs"]}
    if case.startswith("dqn"):
        agree(case, "qf_preds", module.compute_q_values(batch)["qf_preds"])
        agree(case, "target_qf_preds", module.forward_target(batch)["qf_preds"])
        return
    agree(case, "action_dist_inputs", module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS])
    if case.startswith(("ppo", "appo")):
        agree(case, "values", module.compute_values(batch))
        if case == "appo":
            agree(case, "old_action_dist_inputs", module.forward_target(batch)["target_network_action_dist_inputs"])
        return
    batch |= {Columns.ACTIONS: OUTPUTS[f"{case}/actions"]} if "_box" in case else {}
    if case.startswith("tqc"):
        agree(case, "qf", module.compute_q_values(batch))
        agree(case, "target_qf", module.forward_target(batch))
        return
    lower = np.minimum(OUTPUTS[f"{case}/qf"], OUTPUTS[f"{case}/qf_twin"])
    np.testing.assert_allclose(module.compute_q_values(batch, squeeze="_box" in case), lower, **CLOSE)
    agree(case, "target_qf", module.forward_target(batch, squeeze="_box" in case))


def test_rllibs_weights_come_as_arrays_and_as_files_without_code(tmp_path, monkeypatch):
    weights = dict(np.load(WEIGHTS / "dqn_dueling.npz"))
    expected = module_of("dqn_dueling")
    expected.load_rllib_weights(weights)
    save_file(weights, tmp_path / "weights.safetensors")
    module = module_of("dqn_dueling")
    module.load_rllib_weights(tmp_path / "weights.safetensors")
    assert same(module.get_state(), expected.get_state())
    # Those of an inference-only module of RLlib's have no target networks: they become equal to what they follow.
    module.load_rllib_weights({name: value for name, value in weights.items() if not name.startswith("_target")})
    batch = {Columns.OBS: OUTPUTS["dqn_dueling/obs"]}
    agree("dqn_dueling", "qf_preds", module.forward_target(batch)["qf_preds"])
    acting = module_of("dqn_dueling", inference_only=True)
    acting.load_rllib_weights(weights)
    agree("dqn_dueling", "qf_preds", acting.compute_q_values(batch)["qf_preds"])
    # PyTorch reads its own files, without what could run code.
    calls = []
    torch = SimpleNamespace(load=lambda path, **arguments: calls.append(arguments) or weights)
    (tmp_path / "weights.pt").touch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    module.load_rllib_weights(tmp_path / "weights.pt")
    assert calls == [{"map_location": "cpu", "weights_only": True}] and same(module.get_state(), expected.get_state())
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"needs torch. Install it, or use an \.npz"):
        module.load_rllib_weights(tmp_path / "weights.pt")


class Harmful:
    def __reduce__(self):
        return print, ("unpickled",)


def test_what_are_no_weights_of_the_module_is_refused_and_changes_nothing(tmp_path, capsys):
    module = module_of("ppo_separate")
    before = module.get_state()
    weights = dict(np.load(WEIGHTS / "ppo_separate.npz"))
    files = {name: tmp_path / name for name in ("pickled.npz", "large.npz", "text.npz", "state.pkl")}
    np.savez(files["pickled.npz"], **weights, extra=np.array(Harmful(), object))
    np.savez_compressed(files["large.npz"], zeros=np.zeros(1 << 23, np.float32))
    for name in ("text.npz", "state.pkl"):
        files[name].write_text("no weights")
    pi = "pi.net.mlp.0.weight"
    for given, message in [
        (files["pickled.npz"], "allow_pickle=False"),
        (files["large.npz"], "more than the"),
        (files["text.npz"], "not a zip file"),
        (files["state.pkl"], r"checkpoints are pickles.*numpy\.savez"),
        ({k: v for k, v in weights.items() if not k.startswith("pi.")}, "lack .*'pi/dense_0/kernel'"),
        ({**weights, pi: weights[pi][:, :-1]}, "'pi/dense_0/kernel' of shape"),
        ({**weights, "encoder.lstm.weight": weights[pi]}, "'encoder.lstm.weight', which is not part"),
        ({**weights, pi: np.array("text")}, "Weights must be floats"),
        (dict(np.load(WEIGHTS / "ppo_shared.npz")), "saved with vf_share_layers=True, and this module has False"),
    ]:
        with pytest.raises(ValueError, match=message):
            module.load_rllib_weights(given)
        assert same(module.get_state(), before)
    with pytest.raises(FileNotFoundError, match=r"absent\.npz"):
        module.load_rllib_weights(tmp_path / "absent.npz")
    assert "unpickled" not in capsys.readouterr().out


def test_rllibs_weights_go_into_an_algorithm(trained):
    algorithm, path = trained
    several = algorithm.get_module().as_multi_rl_module()
    weights = {
        name: np.full_like(value, 0.5)
        for name, value in {
            "encoder.actor_encoder.net.mlp.0.weight": np.zeros((4, 2), np.float32),
            "encoder.actor_encoder.net.mlp.0.bias": np.zeros(4, np.float32),
            "pi.net.mlp.0.weight": np.zeros((2, 4), np.float32),
            "pi.net.mlp.0.bias": np.zeros(2, np.float32),
        }.items()
    }
    weights |= {name.replace("actor", "critic"): value for name, value in weights.items() if "actor" in name}
    weights |= {"vf.net.mlp.0.weight": np.ones((1, 4), np.float32), "vf.net.mlp.0.bias": np.ones(1, np.float32)}
    several.load_rllib_weights({DEFAULT_MODULE_ID: weights})
    algorithm.set_weights(several.get_state())
    assert np.all(weights_of(algorithm)["pi/dense_0/kernel"] == 0.5)
    algorithm.restore_from_path(path)
    with pytest.raises(ValueError, match="a file has the weights of one module"):
        several.load_rllib_weights("weights.npz")
