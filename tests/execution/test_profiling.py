"""`debugging(profile_iterations=...)`: a trace, and the shares of a training step's parts."""

from __future__ import annotations

import pathlib

import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.utils.profiling import _scopes
from tests import programs

PROGRAM = """\
%body (arg: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %fusion.1 = f32[8,4]{1,0} fusion(%a), kind=kLoop, metadata={op_name="jit(_fun)/sampling/while/body/mul"}
  ROOT %dot.7 = f32[8,4]{1,0} dot(%a, %b), metadata={op_name="jit(_fun)/update/transpose(jvp(learner_connector))/dot"}
}
ENTRY %main {
  %while.2 = (s32[], f32[8,4]{1,0}) while(%t), body=%body, metadata={op_name="jit(_fun)/sampling/while"}
  %copy.3 = f32[8,4]{1,0} copy(%c)
  %my_update = f32[8,4]{1,0} add(%c, %c), metadata={op_name="jit(_fun)/my_update/add"}
}
"""


def test_instructions_belong_to_their_innermost_scope_and_loops_to_what_is_in_them():
    expected = {"fusion.1": "sampling", "dot.7": "learner_connector", "copy.3": "other", "my_update": "other"}
    assert dict(_scopes(PROGRAM)) == expected


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (programs.ppo(), {"sampling", "learner_connector", "update", "other"}),
        (programs.dqn(), {"sampling", "replay", "update", "other"}),
        (programs.ppo("CartPole-v1"), {"env_runner_sampling_timer", "learner_update_timer", "other"}),
    ],
)
def test_the_profile_of_an_iteration_says_what_its_time_went_to(config, parts):
    algo = config.debugging(profile_iterations=[2]).build_algo()
    results = [algo.train() for _ in range(3)]
    algo.stop()
    assert ["profile" in result for result in results] == [False, True, False]
    shares = dict(results[1]["profile"])
    folder = pathlib.Path(shares.pop("trace_dir"))
    assert list(folder.rglob("*.xplane.pb")) and folder.name == "iteration_000002"
    assert parts <= shares.keys() and sum(shares.values()) == pytest.approx(1.0)
    assert all(shares[part] > 0.0 for part in parts - {"other"})


@pytest.mark.parametrize("wrong", [0, [1, -1], "12", 1.5])
def test_what_is_no_iteration_is_refused(wrong):
    with pytest.raises(ValueError, match="profile_iterations"):
        PPOConfig().debugging(profile_iterations=wrong)
