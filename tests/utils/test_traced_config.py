from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import pytest

from jaxrl_stack.utils.traced_config import TracedConfigView, explain_traced_branches


class FakeConfig:
    clip_param = 0.3
    use_critic = True

    def get_config_for_module(self, module_id):
        return types.SimpleNamespace(use_critic=module_id == "a")


def test_traced_settings_are_the_arrays_and_the_rest_is_the_config():
    view = TracedConfigView(FakeConfig(), {"clip_param": jnp.float32(0.1)}, {"a": {"clip_param": jnp.float32(0.2)}})
    assert view.use_critic is True
    assert view.traced_reads == ()
    assert float(view.clip_param) == pytest.approx(0.1)
    of_module = view.get_config_for_module("a")
    assert of_module.use_critic
    assert float(of_module.clip_param) == pytest.approx(0.2)
    assert not view.get_config_for_module("b").use_critic
    assert view.traced_reads == ("clip_param",)
    with pytest.raises(AttributeError, match="read-only"):
        view.clip_param = 0.5


def test_branching_on_a_traced_setting_names_it():
    def loss(values):
        view = TracedConfigView(FakeConfig(), values)
        with explain_traced_branches(view):
            scale = 2.0 * view.kl_coeff
            return scale if view.clip_param > 0.0 else -scale

    with pytest.raises(TypeError, match=r"'clip_param', read on this line\..*_static_settings=\['clip_param'\]"):
        jax.jit(loss)({"clip_param": 0.1, "kl_coeff": 0.2})


def test_branching_on_data_names_the_line_and_what_to_write():
    def loss(x):
        with explain_traced_branches(TracedConfigView(FakeConfig(), {"clip_param": x})):
            return 1.0 if x > 0 else 2.0

    with pytest.raises(TypeError, match=r"(?s)test_traced_config.*if x > 0 else 2.0.*use jnp.where"):
        jax.jit(loss)(1.0)
