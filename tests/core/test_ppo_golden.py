"""PPO against numbers that RLlib itself computed; see tests/reference/make_ppo_golden.py for their layout."""

import json
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import optax
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.core.learner.minibatches import num_minibatches
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode

GOLDEN = json.loads((Path(__file__).parents[1] / "reference" / "ppo_golden.json").read_text())
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
LAYERS = {
    "encoder/actor/dense_0": ("actor_encoder", 0),
    "encoder/actor/dense_1": ("actor_encoder", 1),
    "encoder/critic/dense_0": ("critic_encoder", 0),
    "encoder/critic/dense_1": ("critic_encoder", 1),
    "pi/dense_0": ("pi", 0),
    "pi/mean/dense_0": ("pi", 0),
    "vf/dense_0": ("vf", 0),
}


class GradientLearner(PPOLearner):
    """One step of plain gradient descent with rate 1: the parameters move by exactly minus the gradient."""

    def configure_optimizers_for_module(self, module_id, config=None):
        self.register_optimizer(
            module_id=module_id,
            optimizer=optax.sgd,
            params=self.get_parameters(self.module[module_id]),
            lr_or_lr_schedule=1.0,
        )


def tree_of(params):
    """Our flat parameters in the layout of the file."""
    out = {}
    for ref, value in params.items():
        path, _, leaf = ref.removeprefix("default_policy/").rpartition("/")
        if leaf == "log_std":
            out["log_std"] = value
            continue
        part, index = LAYERS[path]
        out.setdefault(part, {}).setdefault(index, {})[leaf] = value
    return {k: [v[i] for i in sorted(v)] if isinstance(v, dict) else v for k, v in out.items()}


def params_from(tree, params):
    out = {}
    for ref, value in params.items():
        path, _, leaf = ref.removeprefix("default_policy/").rpartition("/")
        given = tree["log_std"] if leaf == "log_std" else tree[LAYERS[path][0]][LAYERS[path][1]][leaf]
        out[ref] = np.asarray(given, np.float32).reshape(value.shape)
    return out


def assert_trees_close(ours, golden, **tolerance):
    golden = jax.tree.map(np.asarray, golden, is_leaf=lambda x: isinstance(x, list) and not isinstance(x[0], dict))
    for (path, mine), theirs in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(golden), strict=True):
        np.testing.assert_allclose(
            mine, theirs.reshape(mine.shape), **(tolerance or TOLERANCE), err_msg=jax.tree_util.keystr(path)
        )


def make_learner(module, settings, learner_class=None, **training):
    golden = GOLDEN["modules"][module]
    settings = {k: v for k, v in {**settings, **training}.items() if k not in ("num_epochs", "minibatch_size")}
    action_space = (
        gym.spaces.Discrete(2) if module == "discrete" else gym.spaces.Box(-1.0, 1.0, (golden["action_dim"],))
    )
    config = (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=action_space)
        .training(**settings)
        .rl_module(model_config={**GOLDEN["model_config"], "free_log_std": module.endswith("log_std")})
    )
    if learner_class is not None:
        config.learners(learner_class=learner_class)
    learner = config.build_learner()
    learner.set_weights(params_from(golden["parameters"], learner.get_weights()))
    return learner


def batch_of(module, with_loss_mask=False):
    batch = GOLDEN["modules"][module]["batch"]
    dtypes = {"terminateds": bool, "truncateds": bool, "loss_mask": bool}
    actions = np.int32 if module == "discrete" else np.float32
    out = {k: np.asarray(v, dtypes.get(k, actions if k == "actions" else np.float32)) for k, v in batch.items()}
    if not with_loss_mask:
        del out["loss_mask"]
    return out


def terms_of(metrics):
    return {k: float(v) for k, v in metrics["default_policy"].items()}


def assert_terms(metrics, golden):
    ours = terms_of(metrics)
    for name, value in golden.items():
        np.testing.assert_allclose(ours[name], value, **TOLERANCE, err_msg=name)


@pytest.mark.parametrize("module", GOLDEN["modules"])
def test_forward(module):
    golden = GOLDEN["modules"][module]
    learner = make_learner(module, {})
    batch = batch_of(module)
    rl_module = learner.module["default_policy"]
    out = rl_module.forward_train(batch)
    distribution = rl_module.get_train_action_dist_cls().from_logits(out["action_dist_inputs"])
    old = rl_module.get_train_action_dist_cls().from_logits(batch["action_dist_inputs"])
    forward = {
        "action_dist_inputs": out["action_dist_inputs"],
        "vf_preds": rl_module.compute_values(batch),
        "logp": distribution.logp(batch["actions"]),
        "entropy": distribution.entropy(),
        "kl": old.kl(distribution),
    }
    for name, value in forward.items():
        np.testing.assert_allclose(value, np.asarray(golden["forward"][name]), **TOLERANCE, err_msg=name)


@pytest.mark.parametrize("case", GOLDEN["losses"])
def test_loss_terms_and_gradients(case):
    golden = GOLDEN["losses"][case]
    learner = make_learner(golden["module"], golden["settings"], GradientLearner)
    before = learner.get_weights()
    metrics = learner.update(batch=batch_of(golden["module"], golden["with_loss_mask"]))
    # The explained variance is taken over valid rows here, over all rows there.
    skip = {"vf_explained_var"} if golden["with_loss_mask"] or not golden["settings"]["use_critic"] else set()
    if not golden["settings"]["use_critic"]:
        skip |= {"vf_loss", "vf_loss_unclipped"}
    if not golden["settings"]["use_kl_loss"]:
        skip |= {"mean_kl_loss"}
    assert_terms(metrics, {k: v for k, v in golden["terms"].items() if k not in skip})
    if "gradients" in golden:
        after = learner.get_weights()
        assert_trees_close(tree_of({ref: before[ref] - after[ref] for ref in before}), golden["gradients"])


@pytest.mark.parametrize("mode", ["none", "value", "norm", "global_norm"])
def test_gradient_clipping(mode):
    golden = GOLDEN["clipping"][mode]
    clip = {} if mode == "none" else {"grad_clip": golden["grad_clip"], "grad_clip_by": mode}
    if "gradients" in golden:
        learner = make_learner("discrete", GOLDEN["clipping"]["settings"], GradientLearner, **clip)
        before = learner.get_weights()
        learner.update(batch=batch_of("discrete"))
        after = learner.get_weights()
        assert_trees_close(tree_of({ref: before[ref] - after[ref] for ref in before}), golden["gradients"])
    learner = make_learner("discrete", GOLDEN["clipping"]["settings"], **clip)
    for update in range(3):
        metrics = learner.update(batch=batch_of("discrete"))
        if update == 0:
            if mode == "global_norm":
                norm = metrics["default_policy"]["gradients_default_optimizer_global_norm"]
                np.testing.assert_allclose(norm, golden["global_norm_before"], **TOLERANCE)
            assert_trees_close(tree_of(learner.get_weights()), golden["parameters_after_1"])
    assert_trees_close(tree_of(learner.get_weights()), golden["parameters_after_3"])


def test_five_updates_move_the_kl_coefficient_and_the_learning_rate():
    golden = GOLDEN["five_updates"]
    learner = make_learner("discrete", golden["settings"])
    for step in golden["steps"]:
        metrics = learner.update(batch=batch_of("discrete"), timesteps=step["timesteps"])
        ours = metrics["default_policy"]
        np.testing.assert_allclose(ours["default_optimizer_learning_rate"], step["lr_used"], rtol=1e-6)
        np.testing.assert_allclose(ours["curr_kl_coeff"], step["kl_coeff_after"], rtol=1e-6)
        assert_terms(metrics, step["terms"])
        assert_trees_close(tree_of(learner.get_weights()), step["parameters"])


@pytest.mark.parametrize("case", ["wrap_free", "wrap_around"])
def test_minibatches_in_order(case):
    golden = GOLDEN["minibatches"][case]
    learner = make_learner("discrete", golden["settings"])
    metrics = learner.update(
        batch=batch_of("discrete"),
        num_epochs=golden["settings"]["num_epochs"],
        minibatch_size=golden["settings"]["minibatch_size"],
    )
    assert_terms(metrics, {k: v for k, v in golden["terms"].items() if k != "vf_explained_var"})
    np.testing.assert_allclose(metrics["default_policy"]["curr_kl_coeff"], golden["kl_coeff_after"], rtol=1e-6)
    assert_trees_close(tree_of(learner.get_weights()), golden["parameters"])


def test_number_of_updates():
    for case in GOLDEN["row_order"]:
        ours = num_minibatches(case["rows"], case["minibatch_size"], case["num_epochs"])
        assert ours == case["num_updates"], case


def golden_episodes():
    for i, episode in enumerate(GOLDEN["gae"]["episodes"]):
        yield SingleAgentEpisode.from_arrays(
            id_=str(i),
            observations=np.asarray(episode["observations"], np.float32),
            actions=np.asarray(episode["actions"], np.int32),
            rewards=np.asarray(episode["rewards"], np.float32),
            terminated=episode["terminated"],
            truncated=episode["truncated"],
            t_started=episode["t_started"],
            extra_model_outputs={
                "action_logp": np.asarray(episode["action_logp"], np.float32),
                "action_dist_inputs": np.asarray(episode["action_dist_inputs"], np.float32),
            },
        )


class RecordingPPOLearner(PPOLearner):
    """Keeps the rows that the minibatch loop gets."""

    def _rows_of_episodes(self, episodes, counter):
        self.rows, layouts = super()._rows_of_episodes(episodes, counter)
        return self.rows, layouts


@pytest.mark.parametrize("case", GOLDEN["gae"]["settings"], ids=lambda c: f"gamma={c['gamma']}")
def test_advantages_and_targets_of_episodes(case):
    settings = {"gamma": case["gamma"], "lambda_": case["lambda_"]}
    learner = make_learner("discrete", settings, RecordingPPOLearner)
    learner.update(episodes=list(golden_episodes()))
    rows = jax.device_get(learner.rows["default_policy"])
    real = np.asarray(GOLDEN["gae"]["rows"]["loss_mask"], bool)
    np.testing.assert_allclose(rows["value_targets"], np.asarray(case["value_targets"])[real], **TOLERANCE)
    np.testing.assert_allclose(rows["advantages"], np.asarray(case["masked_standardized"])[real], **TOLERANCE)


def test_update_from_episodes():
    golden = GOLDEN["gae"]["update"]
    learner = make_learner("discrete", golden["settings"])
    metrics = learner.update(episodes=list(golden_episodes()))
    assert_terms(metrics, golden["terms"])
    assert_trees_close(tree_of(learner.get_weights()), golden["parameters"])
