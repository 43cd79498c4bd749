"""The small modules that RLlib's users import beside the large ones: same names, same meaning."""

from __future__ import annotations

import importlib
import importlib.util
import json
import types
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils import annotations, framework, images, numpy, serialization, typing
from jaxrl_stack.utils.error import EnvError, NotSerializable, UnsupportedSpaceException
from jaxrl_stack.utils.from_config import from_config
from jaxrl_stack.utils.metrics.stats import ItemStats
from jaxrl_stack.utils.nested import tree_map
from jaxrl_stack.utils.spaces import space_utils
from jaxrl_stack.utils.test_utils import check, check_learning_achieved, check_train_results_new_api_stack


class Base:
    def __init__(self, *args, **settings):
        self.args, self.settings = args, settings

    def method(self):
        return 1


class Other(Base):
    pass


# -------------------------------------------------------------------------------------------------------- annotations


def test_a_new_package_object_has_the_module_of_annotations():
    """Also before another file has imported the module."""
    spec = importlib.util.find_spec("jaxrl_stack.utils")
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    assert isinstance(package.annotations, types.ModuleType)


def test_override_checks_the_name_and_changes_nothing():
    class Right(Base):
        @annotations.override(Base)
        def method(self):
            return 2

    assert Right().method() == 2
    with pytest.raises(NameError, match="Base has no method 'methd'"):

        class Wrong(Base):
            @annotations.override(Base)
            def methd(self):
                return 2


@pytest.mark.parametrize("mark", ["PublicAPI", "DeveloperAPI", "ExperimentalAPI", "OldAPIStack"])
def test_marks_give_back_what_they_mark(mark):
    assert getattr(annotations, mark)(Base) is Base


def test_is_overridden_tells_the_marked_method_from_another():
    class Parent:
        @annotations.OverrideToImplementCustomLogic
        def step(self):
            pass

        @annotations.OverrideToImplementCustomLogic_CallToSuperRecommended
        def setup(self):
            pass

    class Child(Parent):
        def step(self):
            pass

    assert not annotations.is_overridden(Parent().step) and not annotations.is_overridden(Child().setup)
    assert annotations.is_overridden(Child().step)


def test_deprecated_warns_or_raises_and_names_the_replacement():
    @annotations.Deprecated(new="new()", error=False)
    def old(x):
        return x + 1

    @annotations.Deprecated(old="Old", help="Write it yourself.", error=True)
    class Old:
        pass

    with pytest.warns(DeprecationWarning, match=r"old is deprecated. Use new\(\)."):
        assert old(1) == 2
    with pytest.raises(ValueError, match="Old is deprecated. Write it yourself."):
        Old()


# ---------------------------------------------------------------------------------------- typing, framework, exceptions


def test_types_can_be_joined_and_subscripted_at_run_time():
    assert list[typing.EpisodeType] and typing.EpisodeType | None and typing.TensorType | None
    assert isinstance(jnp.zeros(2), typing.TensorType) and isinstance(np.zeros(2), typing.TensorType)


def test_rllibs_exceptions_are_exceptions():
    for error in (EnvError, NotSerializable, UnsupportedSpaceException):
        with pytest.raises(error, match="why"):
            raise error("why")


def test_jax_is_there_and_other_frameworks_may_be():
    assert framework.try_import_jax()[0] is jax
    arrays = framework.convert_to_tensor({"a": [1.0, 2.0], "b": (np.arange(3),)})
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(arrays))
    with pytest.raises(ValueError, match="the only framework"):
        framework.convert_to_tensor([1.0], framework="tf2")


def test_without_torch_files_that_mention_it_can_be_imported(monkeypatch):
    monkeypatch.setitem(importlib.import_module("sys").modules, "torch", None)
    torch, nn = framework.try_import_torch()
    assert torch is None

    class Network(nn.Module):
        def forward(self, x: nn.parallel.DistributedDataParallel):
            return x

    with pytest.raises(ImportError, match=r"Network is a torch.nn.Module.*flax.nnx"):
        Network(1, width=2)
    with pytest.raises(ImportError, match="PyTorch is not installed"):
        framework.try_import_torch(error=True)


# -------------------------------------------------------------------------------------------------------------- numpy


def test_arrays_of_all_kinds_become_numpy_arrays():
    struct = {"a": jnp.ones(2), "b": (np.float64(2.0), "text", None), "c": [np.arange(2)]}
    found = numpy.convert_to_numpy(struct)
    assert type(found["a"]) is np.ndarray and found["b"][0].dtype == np.float32 and found["b"][1:] == ("text", None)
    assert found["c"][0].dtype == np.int32
    assert numpy.convert_to_numpy(np.float64(2.0), reduce_type=False).dtype == np.float64


def test_functions_of_networks_by_hand():
    np.testing.assert_allclose(numpy.relu(np.array([-2.0, 3.0]), alpha=0.5), [-1.0, 3.0])
    np.testing.assert_allclose(numpy.sigmoid(np.array([0.0])), [0.5])
    np.testing.assert_allclose(numpy.sigmoid(np.array([0.25]), derivative=True), [0.1875])
    np.testing.assert_allclose(numpy.softmax([[0.0, np.log(3.0)]]), [[0.25, 0.75]])
    # Large numbers do not overflow, and nothing is below epsilon.
    np.testing.assert_allclose(numpy.softmax([1000.0, 0.0]), [1.0, 1e-6])
    np.testing.assert_allclose(numpy.huber_loss(np.array([0.5, -3.0])), [0.125, 2.5])
    assert numpy.l2_loss(np.array([1.0, 2.0])) == 2.5
    x, weights = np.ones((2, 3)), np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(numpy.fc(x, weights, np.ones(4)), x @ weights + 1)
    np.testing.assert_allclose(numpy.fc(x, weights.T, framework="torch"), x @ weights)


def test_one_hot():
    np.testing.assert_array_equal(numpy.one_hot([[1], [2]]), [[[0, 1, 0]], [[0, 0, 1]]])
    np.testing.assert_array_equal(numpy.one_hot(np.array([True, False])), [[0, 1], [1, 0]])
    assert numpy.one_hot(0, 2, on_value=5, off_value=-1, dtype=np.int8).tolist() == [5, -1]
    np.testing.assert_array_equal(numpy.one_hot_multidiscrete(np.array([[0, 2], [1, 0]]), [2, 3])[0], [1, 0, 0, 0, 1])
    for wrong in ([3], [-1]):
        with pytest.raises(ValueError, match=r"one_hot\(depth=3\)"):
            numpy.one_hot(wrong, 3)


@pytest.mark.parametrize("leading", [(), (2,), (2, 5)])
def test_flattened_inputs_are_gymnasiums_vectors(leading):
    space = Dict({"b": Tuple((Discrete(3), Box(-1.0, 1.0, (2, 2)))), "a": MultiDiscrete([2, 3])})
    space.seed(1)
    n = int(np.prod(leading))
    items = [space.sample() for _ in range(n)]
    wanted = np.stack([gym.spaces.flatten(space, item) for item in items]).reshape(*leading, -1)
    inputs = tree_map(lambda *leaves: np.stack(leaves).reshape((*leading, *np.shape(leaves[0]))), *items)
    found = numpy.flatten_inputs_to_1d_tensor(inputs, space, time_axis=len(leading) == 2, batch_axis=bool(leading))
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.float32
    with pytest.raises(ValueError, match="batch_axis"):
        numpy.flatten_inputs_to_1d_tensor(inputs, space, time_axis=True, batch_axis=False)


def test_immutable_actions_cannot_be_written_to():
    array, view = numpy.make_action_immutable(np.zeros(2)), numpy.make_action_immutable({"a": 1})
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0
    with pytest.raises(TypeError, match="does not support item assignment"):
        view["a"] = 2


# ------------------------------------------------------------------------------------------------------------- images


def test_images_are_shrunk_by_areas():
    image = np.arange(16, dtype=np.uint8).reshape(4, 4)
    np.testing.assert_array_equal(images.resize(image, 2, 2), np.rint([[2.5, 4.5], [10.5, 12.5]]))
    assert images.resize(np.zeros((8, 6, 3), np.float32), height=4, width=3).shape == (4, 3, 3)
    gray = images.rgb2gray(np.full((2, 3, 3), 200, np.uint8))
    assert gray.shape == (2, 3) and gray.dtype == np.uint8 and (gray == 200).all()
    assert images.is_package_installed("numpy") and not images.is_package_installed("no-such-package")


# -------------------------------------------------------------------------------------------- serialization and configs


class Pair(NamedTuple):
    a: int
    b: float


def test_results_become_python_values():
    values = {
        "a": np.int64(1),
        "b": [np.float32(0.5), (np.bool_(True), jnp.ones(2))],
        "c": np.array([[1, 2]]),
        "d": None,
    }
    found = serialization.convert_numpy_to_python_primitives(values)
    assert found == {"a": 1, "b": [0.5, (True, [1.0, 1.0])], "c": [[1, 2]], "d": None}
    assert json.loads(json.dumps(found))["c"] == [[1, 2]] and type(found["b"][1][0]) is bool
    assert serialization.convert_numpy_to_python_primitives(Pair(np.int32(1), np.float32(2))) == (1, 2.0)


def test_classes_and_spaces_go_through_texts_and_back():
    path = serialization.serialize_type(Base)
    assert path == f"{__name__}.Base" and serialization.serialize_type(path) == path
    assert serialization.deserialize_type("collections.OrderedDict").__name__ == "OrderedDict"
    assert serialization.deserialize_type(Base) is Base and serialization.deserialize_type("PPO") == "PPO"
    with pytest.raises(ValueError, match="this class cannot be imported"):
        serialization.deserialize_type("collections.Nothing", error=True)
    space = Dict({"a": Box(-1.0, 1.0, (2,)), "b": Discrete(3)})
    assert serialization.gym_space_from_dict(json.loads(json.dumps(serialization.gym_space_to_dict(space)))) == space


def test_arguments_that_cannot_be_sent_are_named():
    serialization.check_if_args_kwargs_serializable([1, lambda x: x], {"a": np.ones(2)})
    with pytest.raises(NotSerializable, match="argument lock="):
        serialization.check_if_args_kwargs_serializable([], {"lock": importlib.import_module("threading").Lock()})


def test_objects_from_descriptions(tmp_path):
    for made in (
        from_config(Base, {"type": Other, "a": 1}, b=2),
        from_config(Base, Other, a=1, b=2),
        from_config(Base, "Other", a=1, b=2),
        from_config({"type": f"{__name__}.Other", "a": 1}, b=2),
        from_config(f"{__name__}.Other", a=1, b=2),
        from_config(Base, type=Other, a=1, b=2),
        from_config(Base, '{"type": "Other", "a": 1}', b=2),
        from_config(Base, lambda **settings: Other(**settings), a=1, b=2),
    ):
        assert type(made).__name__ == "Other" and made.settings == {"a": 1, "b": 2}
    there = Other()
    assert from_config(Base, there) is there
    assert type(from_config(Base)) is Base and from_config(Base, {"_args": [1, 2]}).args == (1, 2)
    for suffix, text in ((".json", '{"type": "Other", "a": 1}'), (".yaml", "type: Other\na: 1\n")):
        file = tmp_path / f"object{suffix}"
        file.write_text(text)
        assert from_config(Base, str(file)).settings == {"a": 1}


def test_a_registry_of_types_comes_first_and_wrong_descriptions_are_named():
    class Registered(Base):
        __type_registry__ = {"Other": Base}

    assert type(from_config(Registered, "Other")) is Base
    with pytest.raises(ValueError, match="the class 'Nothing' cannot be imported"):
        from_config(Base, "Nothing")
    with pytest.raises(TypeError, match="no class is given"):
        from_config({"a": 1})


# ------------------------------------------------------------------------------------------------------------- spaces

SPACE = Dict(
    {"b": Tuple((Box(-2.0, 4.0, (2,)), Discrete(3))), "a": Box(0.0, np.inf, (1,)), "c": Box(3, 9, (1,), np.int32)}
)


def test_parts_of_a_space():
    assert space_utils.flatten_space(SPACE) == [SPACE["a"], *SPACE["b"], SPACE["c"]]
    assert space_utils.get_base_struct_from_space(SPACE)["b"] == tuple(SPACE["b"])
    assert space_utils.is_composite_space(SPACE) and not space_utils.is_composite_space(Discrete(2))
    inner, outer = Discrete(2), Box(-1.0, 1.0, (2,))
    outer.original_space = inner
    assert space_utils.get_original_space(outer) is inner and space_utils.get_original_space(inner) is inner


def test_batches_and_back():
    items = [{"a": i, "b": (np.full(2, i), float(i))} for i in range(3)]
    batch = space_utils.batch(items)
    assert batch["a"].tolist() == [0, 1, 2] and batch["b"][0].shape == (3, 2)
    check(space_utils.unbatch(batch), items)
    joined = [{"a": np.zeros((2, 3))}, {"a": np.ones((1, 3))}]
    assert space_utils.batch(joined, individual_items_already_have_batch_dim=True)["a"].shape == (3, 3)
    marked = [tree_map(space_utils.BatchedNdArray, item) for item in joined]
    assert space_utils.batch(marked, individual_items_already_have_batch_dim="auto")["a"].shape == (3, 3)
    assert space_utils.batch([1.0, 2.0], individual_items_already_have_batch_dim="auto").tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="empty"):
        space_utils.batch([])


def test_dummy_batches_have_the_form_of_the_space():
    space = Dict({"a": Box(-1.0, 1.0, (2,)), "b": Discrete(3), "c": MultiDiscrete([2, 3])})
    batch = space_utils.get_dummy_batch_for_space(space, 4, fill_value=1)
    assert batch["a"].shape == (4, 2) and batch["a"].dtype == np.float32 and batch["b"].shape == (4,)
    assert space.contains(tree_map(lambda leaf: leaf[()], space_utils.get_dummy_batch_for_space(space, 0)))
    drawn = space_utils.get_dummy_batch_for_space(space, 4, fill_value="random", time_size=5)
    assert drawn["a"].shape == (4, 5, 2) and len(np.unique(drawn["a"])) > 1
    major = space_utils.get_dummy_batch_for_space(space, 4, time_size=5, time_major=True, one_hot_discrete=True)
    assert major["b"].shape == (5, 4, 3) and major["c"].shape == (5, 4, 5)
    with pytest.raises(ValueError, match="time axis needs a batch"):
        space_utils.get_dummy_batch_for_space(space, 0, time_size=2)


def test_actions_between_bounds_and_the_unit_interval():
    action = {"a": np.array([7.0]), "b": (np.array([-1.0, 0.5]), 2), "c": np.array([1])}
    scaled = space_utils.unsquash_action(action, SPACE)
    check(scaled, {"a": [7.0], "b": ([-2.0, 2.5], 2), "c": [4]})
    check(space_utils.normalize_action(scaled, space_utils.get_base_struct_from_space(SPACE)), action)
    far = {"a": np.array([-7.0]), "b": (np.array([-9.0, 0.5]), 2), "c": np.array([1])}
    check(space_utils.clip_action(far, SPACE), {"a": [0.0], "b": ([-2.0, 0.5], 2), "c": [3]})
    assert space_utils.flatten_to_single_ndarray(action).tolist() == [7.0, -1.0, 0.5, 2.0, 1.0]


def test_elements_that_were_lists_fit_their_space_again():
    space = Dict({"a": Box(-1.0, 1.0, (2,)), "b": Discrete(3)})
    element = space_utils.convert_element_to_space_type({"a": np.array([0.5, 0.0]), "b": 1.0}, space.sample())
    assert space.contains(element)


# -------------------------------------------------------------------------------------------------------------- check


def test_check_compares_numbers_of_all_kinds():
    check({"a": (jnp.ones(2), 1), "b": [None, "text"]}, {"a": [np.ones(2), 1.000001], "b": (None, "text")})
    check(np.zeros(3), 0.0)
    check(1.0, 1.1, atol=0.2)
    check(100.0, 101.0, rtol=0.02)
    check(1.0, 2.0, false=True)
    check(np.nan, np.nan)
    stats = ItemStats()
    stats.push(3)
    check(stats, 3)


@pytest.mark.parametrize(
    ("x", "y", "options", "place"),
    [
        ({"a": [1, 2.0]}, {"a": [1, 2.1]}, {}, r"x\['a'\]\[1\] is 2.0"),
        ({"a": 1}, {"b": 1}, {}, r"x has the keys \['a'\]"),
        ([1], [1, 2], {}, "x has 1 items"),
        (1.0, 1.1, {"atol": 0.01}, "x is 1.0"),
        (1.0, 1.0, {"false": True}, "x is 1.0"),
        ("a", "b", {}, "x is 'a'"),
        (np.zeros(2), np.zeros(3), {}, "x is array"),
        (True, False, {}, "x is True"),
    ],
)
def test_check_names_the_place_that_differs(x, y, options, place):
    with pytest.raises(AssertionError, match=place):
        check(x, y, **options)


class Results:
    """What `check_learning_achieved` reads of a tuner's results."""

    def __init__(self, *rows):
        self.rows = rows

    def get_dataframe(self):
        return self

    def iterrows(self):
        return enumerate(self.rows)


def test_learning_is_achieved_by_the_best_trial(capsys):
    training, evaluation = "env_runners/episode_return_mean", "evaluation/env_runners/episode_return_mean"
    check_learning_achieved(Results({training: 1.0}, {training: 9.0}), 5.0)
    assert "reached" in capsys.readouterr().out
    check_learning_achieved(Results({training: 9.0, evaluation: 1.0}), 5.0, evaluation=False)
    for results in (Results({training: 1.0}), Results({training: 9.0, evaluation: 1.0}), Results({training: np.nan})):
        with pytest.raises(ValueError, match="must reach 5.0"):
            check_learning_achieved(results, 5.0)


def test_train_results_have_their_groups():
    results = {"env_runners": {}, "fault_tolerance": {}, "timers": {}, "training_iteration": 1, "config": {}}
    results["learners"] = {"__all_modules__": {}, "default_policy": {"qf_max": 1.0}}
    assert check_train_results_new_api_stack(results) is results
    for wrong in ({"config": object()}, {"learners": {"default_policy": {"qf_max": np.zeros(2)}}}):
        with pytest.raises(AssertionError, match="should be"):
            check_train_results_new_api_stack({**results, **wrong})
    for key in ("timers", "config"):
        with pytest.raises(AssertionError, match=f"'{key}' is not in the results"):
            check_train_results_new_api_stack({name: value for name, value in results.items() if name != key})


# ----------------------------------------------------------------------------------- paths of names that live elsewhere


def test_names_at_rllibs_paths():
    from jaxrl_stack.algorithms.algorithm_config import PolicySpec
    from jaxrl_stack.core import Columns as FromCore
    from jaxrl_stack.env import EnvContext
    from jaxrl_stack.env.wrappers.atari_wrappers import is_atari
    from jaxrl_stack.policy.policy import PolicySpec as FromPolicy
    from jaxrl_stack.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch

    assert FromCore is Columns and FromPolicy is PolicySpec and DEFAULT_POLICY_ID == "default_policy"
    assert SampleBatch.OBS == Columns.OBS and EnvContext.__module__ == "jaxrl_stack.env.env_context"
    with pytest.raises(TypeError, match="batches are plain dicts"):
        SampleBatch({"obs": [1]})
    assert is_atari("ALE/Pong-v5") and is_atari("ale_py:ALE/Pong-v5") and not is_atari("CartPole-v1")
    assert not is_atari(gym.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("policy.sample_batch", "MultiAgentBatch", "a dict"),
        ("utils.test_utils", "check_compute_single_action", "compute_single_action"),
        ("utils.test_utils", "check_train_results", "check_train_results_new_api_stack"),
        ("utils.images", "imread", "PIL"),
    ],
)
def test_names_of_the_past_say_what_to_use(module, name, instead):
    with pytest.raises(ImportError, match=f"`{name}` does not exist.*{instead}"):
        exec(f"from jaxrl_stack.{module} import {name}", {})
