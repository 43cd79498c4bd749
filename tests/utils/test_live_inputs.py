import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.utils.live_inputs import traced_once

TWO = jax.ShapeDtypeStruct((2,), jnp.float32)
INPUTS = {"a": TWO, "b": {"x": TWO, "y": TWO}, "c": TWO}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x["a"] * 2.0, "a"),
        (lambda x: (x["c"], x["b"]["y"].sum())[1], "y"),  # c is only looked up
        (lambda x: (jnp.log(x["c"]), x["a"])[1], "a"),
        (lambda x: jax.tree.map(jnp.sum, x), "axyc"),
        (lambda x: jnp.zeros(x["a"].shape), ""),
        (lambda x: jax.debug.callback(lambda x: None, x["c"]), "c"),
        (lambda x: jax.lax.scan(lambda c, _: (c + x["a"][0], None), 0.0, length=2)[0], "a"),
        (lambda x: jax.jit(lambda x: (x["c"] + 1, x["a"]))(x)[1], "a"),
        (lambda x: jax.jit(lambda x: jax.debug.callback(lambda x: None, x["c"]))(x), "c"),
        (lambda x: jax.grad(lambda w: (w * x["a"]).sum())(1.0), "a"),
    ],
)
def test_inputs_matter_if_results_or_effects_depend_on_them(function, expected):
    assert jax.tree.leaves(traced_once(function, INPUTS).matters) == [name in expected for name in "axyc"]


def test_a_replayed_trace_calls_its_function_once_and_closes_over_what_it_did():
    calls = []

    def function(scale, x, unused):
        calls.append(1)
        return {"mean": jax.lax.pmean(scale * x["a"], "i"), "none": None}

    @functools.partial(jax.vmap, axis_name="i")
    def program(outer):
        once = traced_once(lambda *args: function(*args)["mean"] + outer, 1.0, {"a": TWO}, TWO)
        assert once.matters == (True, {"a": True}, False)
        assert once.out.shape == (2,)
        again = once.call
        one, two = (again(scale, {"a": outer + jnp.ones(2)}, jnp.ones(2)) for scale in (1.0, 2.0))
        return one, two, jax.grad(lambda scale: again(scale, {"a": jnp.ones(2)}, jnp.ones(2)).sum())(1.0)

    one, two, gradient = program(jnp.array([0.0, 2.0]))
    assert len(calls) == 1
    np.testing.assert_array_equal(one, [[2, 2], [4, 4]])
    np.testing.assert_array_equal(two, [[4, 4], [6, 6]])
    np.testing.assert_array_equal(gradient, [2, 2])


def test_arguments_of_another_shape_call_the_function_again():
    calls = []

    def function(x):
        calls.append(x.shape)
        return x.sum()

    once = traced_once(function, jnp.ones(2))
    assert float(once.call(jnp.ones(2))) == 2.0 and calls == [(2,)]
    assert float(once.call(jnp.ones(3))) == 3.0 and calls == [(2,), (3,)]
