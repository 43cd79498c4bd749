from __future__ import annotations

import copy
import inspect
import pickle
import random

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.connector_v2 import ConnectorV2, HostConnector, PureConnector
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
from jaxrl_stack.connectors.learner import LearnerConnectorPipeline
from jaxrl_stack.connectors.markers import AddObservationsFromEpisodesToBatch
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode

BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(2)
OBS = np.arange(6, dtype=np.float32).reshape(2, 3)


class Scale(ConnectorV2):
    def __init__(self, input_observation_space=None, input_action_space=None, *, factor: float = 2.0, **kwargs):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.factor = factor

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        space = input_observation_space
        return gym.spaces.Box(space.low * self.factor, space.high * self.factor, dtype=np.float32)

    def apply(self, state, batch, ctx):
        for columns in batch.values():
            columns["obs"] = columns["obs"] * self.factor  # in place on purpose: the caller's batch must not change
        return state, batch


class Scale10(Scale):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, factor=10.0, **kwargs)


class CountSteps(ConnectorV2):
    def init(self, num_envs):
        return {"steps": jnp.zeros(num_envs, jnp.int32), "total": jnp.zeros((), jnp.float32)}

    def apply(self, state, batch, ctx):
        steps = jnp.where(ctx.reset, 0, state["steps"]) + 1
        return {"steps": steps, "total": state["total"] + 1.0}, batch

    def merge_states(self, states):
        return {**states[0], "total": sum(state["total"] for state in states)}


class Draw(ConnectorV2):
    def __init__(self, column: str):
        super().__init__()
        self.column = column

    def apply(self, state, batch, ctx):
        noise = jax.random.uniform(ctx.key, (3,))
        return state, {m: {**columns, self.column: noise} for m, columns in batch.items()}


class HostCounter(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "num_steps", len(episode), episode)
        return batch


def running_episodes(*lengths):
    return [
        SingleAgentEpisode(
            observations=[np.full(3, i, np.float32) for i in range(length + 1)],
            actions=[0] * length,
            rewards=[1.0] * length,
            len_lookback_buffer=0,
        )
        for length in lengths
    ]


def nested(**columns):
    return {DEFAULT_MODULE_ID: columns}


def context(**fields):
    return ConnectorContext(reset=np.zeros(2, bool), **fields)


def run(pipeline, state=None, batch=None, ctx=None):
    state = pipeline.init(2) if state is None else state
    return jax.jit(pipeline.apply)(state, nested(obs=OBS) if batch is None else batch, ctx or context())


def pipeline_of(*connectors, cls=ConnectorPipelineV2):
    return cls(BOX, ACTIONS, connectors=connectors)


# Members


def test_members_are_found_by_index_name_and_class():
    first, second, third = Scale(), CountSteps(), Scale10()
    pipeline = pipeline_of(first, second, third)
    assert len(pipeline) == 3 and list(pipeline) == [first, second, third]
    assert pipeline[1] is second and pipeline["CountSteps"] is second
    assert pipeline[Scale] == [first, third] and pipeline[Scale10] == [third]
    with pytest.raises(ValueError, match=r"No connector 'Draw'.*\['Scale', 'CountSteps', 'Scale10'\]"):
        pipeline.remove("Draw")


def test_order_after_insertions_and_removals():
    pipeline = pipeline_of(Scale())
    pipeline.append(CountSteps())
    pipeline.prepend(Scale10())
    between = Scale()
    assert pipeline.insert_before(CountSteps, between) is between
    pipeline.insert_after("Scale10", HostCounter())
    assert pipeline.names == ["Scale10", "HostCounter", "Scale", "Scale_1", "CountSteps"]
    pipeline.remove(Scale)  # the class itself, not the subclass before it
    assert pipeline.names == ["Scale10", "HostCounter", "Scale_1", "CountSteps"]


def test_a_name_stays_with_its_connector_when_a_namesake_is_inserted_before_it():
    pipeline = pipeline_of(CountSteps())
    state, _ = run(pipeline)
    pipeline.prepend(CountSteps())
    assert pipeline.names == ["CountSteps_1", "CountSteps"]
    both, _ = run(pipeline, {**pipeline.init(2), **state})
    assert both["CountSteps"]["total"] == 2.0 and both["CountSteps_1"]["total"] == 1.0


def test_wrong_members_are_refused():
    connector = Scale()
    with pytest.raises(ValueError, match="in the pipeline already"):
        pipeline_of(connector, connector)
    with pytest.raises(TypeError, match=r"Scale is a class.*Scale\(\)"):
        pipeline_of(Scale)
    with pytest.raises(TypeError, match=r"3 \(int\) is not a connector.*ConnectorV2"):
        pipeline_of(3)


def test_unknown_arguments_are_refused_but_own_ones_may_be_handed_up():
    with pytest.raises(TypeError, match=r"unknown argument\(s\) \['factr'\]"):
        Scale(factr=3.0)

    class HandsUp(ConnectorV2):
        def __init__(self, *, alpha, **kwargs):
            super().__init__(alpha=alpha, **kwargs)

    assert HandsUp(alpha=1).get_ctor_args_and_kwargs()[1]["alpha"] == 1


def test_signatures_are_those_of_the_constructors():
    assert list(inspect.signature(CountSteps).parameters) == ["input_observation_space", "input_action_space", "kwargs"]
    assert inspect.signature(Scale).parameters["factor"].default == 2.0


# Spaces


def test_spaces_are_chained_and_follow_every_change():
    pipeline = pipeline_of(Scale(), Scale10())
    np.testing.assert_array_equal(pipeline.observation_space.high, np.full(3, 20.0))
    np.testing.assert_array_equal(pipeline[1].input_observation_space.high, np.full(3, 2.0))
    assert pipeline.action_space == ACTIONS
    pipeline.remove(Scale)
    np.testing.assert_array_equal(pipeline.observation_space.high, np.full(3, 10.0))
    pipeline.input_observation_space = gym.spaces.Box(-3.0, 3.0, (3,), np.float32)
    np.testing.assert_array_equal(pipeline.observation_space.high, np.full(3, 30.0))


def test_a_pipeline_without_spaces_takes_those_of_its_first_connector():
    assert ConnectorPipelineV2(connectors=[Scale(BOX, ACTIONS)]).observation_space.high[0] == 2.0
    assert ConnectorPipelineV2(connectors=[Scale()]).observation_space is None


def test_an_error_in_a_space_names_the_connector():
    class NoSpace(ConnectorV2):
        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            raise LookupError("no such space")

    with pytest.raises(LookupError) as error:
        pipeline_of(Scale(), NoSpace())
    assert "'NoSpace', number 2 of 2" in error.value.__notes__[0]


# Pure core


def test_apply_runs_the_connectors_in_order_and_leaves_the_callers_batch_alone():
    pipeline = pipeline_of(Scale(), CountSteps(), Scale10())
    batch = nested(obs=OBS)
    state = pipeline.init(2)
    new_state, out = pipeline.apply(state, batch, context())
    np.testing.assert_array_equal(out[DEFAULT_MODULE_ID]["obs"], OBS * 20.0)
    assert batch[DEFAULT_MODULE_ID]["obs"] is OBS
    assert new_state["Scale"] == () and new_state["CountSteps"]["total"] == 1.0
    assert state["CountSteps"]["total"] == 0.0


def test_state_is_stable_under_scan_and_reset_by_env():
    pipeline = pipeline_of(CountSteps())

    def step(state, reset):
        return pipeline.apply(state, nested(obs=jnp.asarray(OBS)), ConnectorContext(reset=reset))

    resets = jnp.array([[True, True], [False, False], [False, True]])
    state, _ = jax.lax.scan(step, pipeline.init(2), resets)
    np.testing.assert_array_equal(state["CountSteps"]["steps"], [3, 1])


def test_pipelines_nest():
    inner = ConnectorPipelineV2(connectors=[Scale(), CountSteps()])
    outer = pipeline_of(inner, Scale10())
    state, out = run(outer)
    np.testing.assert_array_equal(out[DEFAULT_MODULE_ID]["obs"], OBS * 20.0)
    assert state["ConnectorPipelineV2"]["CountSteps"]["total"] == 1.0
    np.testing.assert_array_equal(outer.observation_space.high, np.full(3, 20.0))


def test_every_connector_draws_from_a_key_of_its_own():
    inner = ConnectorPipelineV2(connectors=[Draw("a"), Draw("b")])
    pipeline = pipeline_of(inner, Draw("c"), Draw("d"))
    _, out = run(pipeline, ctx=context(key=jax.random.key(7)))
    draws = [out[DEFAULT_MODULE_ID][name] for name in "abcd"]
    assert len({float(x) for draw in draws for x in draw}) == 12


def test_what_a_connector_draws_does_not_depend_on_those_around_it():
    key = jax.random.key(7)
    _, alone = run(pipeline_of(Draw("a")), ctx=context(key=key))
    _, among = run(pipeline_of(Scale(), Draw("a"), Scale()), ctx=context(key=key))
    np.testing.assert_array_equal(alone[DEFAULT_MODULE_ID]["a"], among[DEFAULT_MODULE_ID]["a"])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda state, batch: batch, r"tuple \(state, batch\), got dict"),
        (lambda state, batch: (state, None), "batch {module_id: {column: arrays}}, got NoneType"),
        (lambda state, batch: (state, {"obs": OBS}), r"got {'obs': ndarray}"),
        (lambda state, batch: ({}, batch), "differs from the one it got: expected the structure"),
        (lambda state, batch: (jnp.zeros(3), batch), r"expected float32\[2\], got float32\[3\]"),
        (lambda state, batch: (jnp.zeros(2, jnp.int32), batch), r"expected float32\[2\], got int32\[2\]"),
    ],
)
def test_wrong_results_are_refused_by_name(result, message):
    class Wrong(ConnectorV2):
        def init(self, num_envs):
            return jnp.zeros(num_envs)

        def apply(self, state, batch, ctx):
            return result(state, batch)

    with pytest.raises(TypeError, match=message) as error:
        run(pipeline_of(Scale(), Wrong()))
    assert "In connector 'Wrong', number 2 of 2 of ConnectorPipelineV2." in error.value.__notes__


def test_an_exception_inside_a_connector_keeps_its_type_and_names_it():
    class Broken(ConnectorV2):
        def apply(self, state, batch, ctx):
            return state, batch["absent"]

    inner = EnvToModulePipeline(connectors=[Scale(), Broken()])
    with pytest.raises(KeyError, match="absent") as error:
        run(pipeline_of(inner))
    assert [note for note in error.value.__notes__ if note.startswith("In connector")] == [
        "In connector 'Broken', number 2 of 2 of EnvToModulePipeline.",
        "In connector 'EnvToModulePipeline', number 1 of 1 of ConnectorPipelineV2.",
    ]


def test_a_state_for_other_connectors_is_refused():
    state = pipeline_of(Scale()).init(2)
    with pytest.raises(ValueError, match=r"for the connectors \['Scale'\], but this \w+ has \['CountSteps'\]"):
        run(pipeline_of(CountSteps()), state)


def test_what_is_compiled_is_frozen():
    pipeline = pipeline_of(Scale(), CountSteps())
    pure = pipeline.pure_part()
    pipeline.append(Scale10())
    pipeline.input_observation_space = gym.spaces.Box(-3.0, 3.0, (3,), np.float32)
    assert pure.names == ["Scale", "CountSteps"] and pure.observation_space.high[0] == 2.0
    assert pipeline.pure_part().names == pipeline.names and pipeline.pure_part().observation_space.high[0] == 60.0
    pipeline.state = jax.jit(pure.apply)(pure.init(2), nested(obs=OBS), context())[0]
    assert pipeline.get_state()["CountSteps"]["total"] == 1.0


@pytest.mark.parametrize("method", ["init", "apply", "merge", "rebatch"])
def test_a_pipeline_with_pure_functions_of_its_own_is_refused(method):
    own = type("Own", (ConnectorPipelineV2,), {method: lambda self, *args: None})
    for pipeline in (own(BOX, ACTIONS), pipeline_of(own())):
        with pytest.raises(TypeError, match=f"Own overrides `{method}`, which compiled code does not call"):
            pipeline.pure_part()


def test_weak_types_do_not_compile_a_step_twice():
    class Weak(ConnectorV2):
        def init(self, num_envs):
            return {"x": 0.0}

        def apply(self, state, batch, ctx):
            return {"x": 1.0}, batch

    pipeline = pipeline_of(Weak())
    traces = []

    @jax.jit
    def step(state):
        traces.append(1)
        return pipeline.apply(state, nested(obs=OBS), context())[0]

    assert step(step(pipeline.init(2)))["Weak"]["x"] == 1.0
    assert len(traces) == 1


def test_a_context_without_a_module_says_so():
    with pytest.raises(ValueError, match="asks for `ctx.module`"):
        _ = ConnectorContext().module


# Host connectors


def test_host_connectors_are_recognised_and_refused_by_name_with_the_pure_form():
    class Both(HostCounter):
        def apply(self, state, batch, ctx):
            return state, batch

    class HostScale(Scale):
        def __call__(self, **kwargs):
            return super().__call__(**kwargs)

    inner = ConnectorPipelineV2(connectors=[HostCounter()])
    pipeline = pipeline_of(Scale(), Both(), HostScale(), inner)
    assert list(pipeline.host_connectors) == ["HostScale", "ConnectorPipelineV2/HostCounter"]
    with pytest.raises(TypeError, match=r"'HostScale', 'ConnectorPipelineV2/HostCounter'") as error:
        pipeline.check_pure()
    assert "def apply(self, state, batch, ctx)" in str(error.value)
    with pytest.raises(TypeError, match="'HostCounter' override `__call__`"):
        run(pipeline_of(HostCounter()))
    pipeline_of(Scale(), Both()).check_pure()


def test_a_subclass_gets_the_base_of_the_form_that_it_is_written_in():
    class Named(ConnectorV2):
        """Of neither form yet; its own methods come before those of a form."""

        def reset_state(self):
            self.was_reset = True

    class WithApply:
        def apply(self, state, batch, ctx):
            return state, batch

    class Pure(WithApply, Named):
        pass

    class Called(Named):
        def __call__(self, **kwargs):
            return kwargs["batch"]

    assert Named.__bases__ == (ConnectorV2,) and not Named.is_host_connector
    assert Pure.__bases__ == (WithApply, Named, PureConnector) and not Pure.is_host_connector
    assert Called.__bases__ == (Named, HostConnector) and Called.is_host_connector
    assert Scale.__bases__ == (PureConnector,) and HostCounter.__bases__ == (HostConnector,)
    pipeline = pipeline_of(Called(), Pure())
    pipeline.reset_state()
    assert all(connector.was_reset for connector in pipeline)
    np.testing.assert_array_equal(pipeline(batch={"obs": OBS}, episodes=running_episodes(0, 0))["obs"], OBS)


def test_a_connector_with_neither_form_says_so():
    with pytest.raises(NotImplementedError, match="overrides neither `apply` nor `__call__`"):
        run(pipeline_of(ConnectorV2()))


# Calls on the host


def test_calls_keep_state_between_them_and_run_host_connectors():
    pipeline = pipeline_of(HostCounter(), CountSteps(), Scale())
    for _ in range(2):
        out = pipeline(batch={"obs": OBS}, episodes=running_episodes(2, 0), rl_module=None)
    np.testing.assert_array_equal(out["obs"], 2.0 * OBS)
    np.testing.assert_array_equal(out["num_steps"], [2, 0])
    np.testing.assert_array_equal(pipeline.state["CountSteps"]["steps"], [2, 2])
    assert isinstance(pipeline.state["CountSteps"]["steps"], np.ndarray)
    out = pipeline(batch=nested(obs=OBS), episodes=running_episodes(1, 1))
    assert set(out) == {DEFAULT_MODULE_ID}


def test_another_number_of_environments_needs_a_reset():
    pipeline = pipeline_of(CountSteps())
    pipeline(batch={"obs": OBS})
    with pytest.raises(ValueError, match=r"a history for each of 2 environment\(s\), but the batch has 1"):
        pipeline(batch={"obs": OBS[:1]})
    pipeline(batch={"obs": OBS[:1]}, reset=np.ones(1, bool))
    np.testing.assert_array_equal(pipeline.state["CountSteps"]["steps"], [1])


# State on the host


def test_states_are_matched_by_name_whatever_the_order():
    source, target = pipeline_of(CountSteps(), Scale()), pipeline_of(Scale(), CountSteps())
    source(batch={"obs": OBS})
    state = source.get_state()
    assert state == {"CountSteps": state["CountSteps"], "Scale": {}}
    target.set_state(state)
    np.testing.assert_array_equal(target.state["CountSteps"]["steps"], [1, 1])
    target.reset_state()
    np.testing.assert_array_equal(target.state["CountSteps"]["steps"], [0, 0])
    assert source.get_state("Scale") == {"Scale": {}}
    assert source.get_state(not_components=["CountSteps"]) == {"Scale": {}}


def test_states_survive_pickling_and_connectors_copying():
    pipeline = pipeline_of(CountSteps(), Scale(factor=3.0))
    pipeline(batch={"obs": OBS})
    for twin in (copy.deepcopy(pipeline), pickle.loads(pickle.dumps(pipeline))):
        jax.tree.map(np.testing.assert_array_equal, twin.get_state(), pipeline.get_state())
        assert twin[1].factor == 3.0
        assert twin.observation_space == pipeline.observation_space


def test_states_that_do_not_fit_are_refused():
    pipeline = pipeline_of(CountSteps())
    good = pipeline.get_state()["CountSteps"]
    with pytest.raises(ValueError, match="No connector 'Other'") as raised:
        pipeline.set_state({"Other": good})
    assert "component='learner_group'" in raised.value.__notes__[0]
    with pytest.raises(ValueError, match="The state for CountSteps does not fit"):
        pipeline.set_state({"CountSteps": {"steps": good["steps"]}})
    with pytest.raises(ValueError, match=r"'total'.*expected float32\[\], got float32\[1\]"):
        pipeline.set_state({"CountSteps": {**good, "total": np.zeros(1, np.float32)}})
    pipeline.set_state({"CountSteps": {**good, "steps": np.zeros(5, np.int32)}})  # another number of environments
    pipeline.set_state({})
    assert pipeline.get_state()["CountSteps"]["steps"].shape == (5,)


def test_states_merge_by_name():
    pipeline = pipeline_of(Scale(), CountSteps())
    states = []
    for calls in (1, 2):
        pipeline.reset_state()
        for _ in range(calls):
            pipeline(batch={"obs": OBS})
        states.append(dict(reversed(pipeline.get_state().items())))
    assert pipeline.merge_states(states)["CountSteps"]["total"] == 3.0


def test_constructor_arguments_build_the_connector_again():
    args, kwargs = Scale(BOX, ACTIONS, factor=4.0).get_ctor_args_and_kwargs()
    twin = Scale(*args, **kwargs)
    assert twin.factor == 4.0 and twin.input_observation_space == BOX
    pipeline = pipeline_of(twin)
    args, kwargs = pipeline.get_ctor_args_and_kwargs()
    assert list(ConnectorPipelineV2(*args, **kwargs)) == [twin]
    assert pipeline.get_checkpointable_components() == [("Scale", twin)]


# Explaining


def test_explain_shows_what_every_connector_does(capsys):
    class Extra(ConnectorV2):
        def apply(self, state, batch, ctx):
            columns = batch[DEFAULT_MODULE_ID]
            return state, nested(flags=columns["obs"] > 0, wide=jnp.tile(columns["obs"], 2))

    pipeline = pipeline_of(Scale(), CountSteps(), Extra())
    text = pipeline.describe({"obs": OBS})
    assert pipeline.explain({"obs": OBS}) is None
    assert capsys.readouterr().out == text + "\n"
    lines = [line.split() for line in text.splitlines()]
    assert ["1", "Scale"] in lines and ["3", "Extra"] in lines
    assert ["default_policy/obs", "float32[2,", "3]"] in lines
    assert ["+", "default_policy/flags", "bool[2,", "3]"] in lines
    assert ["+", "default_policy/wide", "float32[2,", "6]"] in lines
    assert ["-", "default_policy/obs"] in lines
    assert ["state['steps']:", "int32[2]"] in lines


def test_explain_stops_at_a_host_connector():
    text = pipeline_of(HostCounter(), Scale()).describe({"obs": jax.ShapeDtypeStruct((2, 3), np.float32)})
    assert "host connector" in text and "2 Scale" not in text


# ------------------------------------------------------------------------------------------------- draws without a key


class NoiseOfNumpy(ConnectorV2):
    def apply(self, state, batch, ctx):
        noise = np.random.default_rng().normal(size=3).astype(np.float32)
        return state, {mid: {**columns, "obs": columns["obs"] + noise} for mid, columns in batch.items()}


class NoiseOfTheKey(ConnectorV2):
    def apply(self, state, batch, ctx):
        noise = 0.1 * jax.random.normal(ctx.key, (3,))
        return state, {mid: {**columns, "obs": columns["obs"] + noise} for mid, columns in batch.items()}


class CalledNoise(ConnectorV2):
    """In RLlib's form; it is compiled where episodes have become arrays."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for columns in batch.values():
            columns["obs"] = columns["obs"] * random.random()
        return batch


@pytest.mark.parametrize(
    ("pipeline", "connector", "method"),
    [(EnvToModulePipeline, NoiseOfNumpy, "apply"), (LearnerConnectorPipeline, CalledNoise, "__call__")],
)
def test_draws_that_a_trace_freezes_are_refused(pipeline, connector, method):
    members = [connector()] if pipeline is EnvToModulePipeline else [AddObservationsFromEpisodesToBatch(), connector()]
    made = pipeline(BOX, ACTIONS, connectors=members)
    batch = {DEFAULT_MODULE_ID: {"obs": np.ones((2, 3), np.float32)}}
    with pytest.raises(
        TypeError, match=rf"{connector.__name__}\.{method} is not a pure .* differs \(a constant .*`ctx.key`"
    ):
        jax.eval_shape(lambda batch: made.apply(made.init(2), batch, ConnectorContext(key=jax.random.key(0))), batch)


def test_draws_from_the_key_pass():
    made = EnvToModulePipeline(BOX, ACTIONS, connectors=[NoiseOfTheKey()])
    batch = {DEFAULT_MODULE_ID: {"obs": np.ones((2, 3), np.float32)}}
    jax.eval_shape(lambda batch: made.apply(made.init(2), batch, ConnectorContext(key=jax.random.key(0))), batch)
