"""Processes that are killed while they save: the checkpoint is whole, and as new as they said."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec, RLModuleSpec

NUM_KILLS = {"exchange": 30, "steps": 20}


@pytest.fixture(scope="module")
def modules() -> MultiRLModule:
    spec = RLModuleSpec(
        module_class=DefaultPPORLModule,
        observation_space=gym.spaces.Box(-1, 1, (4,)),
        action_space=gym.spaces.Discrete(2),
        catalog_class=PPOCatalog,
        model_config={"fcnet_hiddens": [8]},
    )
    built = MultiRLModuleSpec(rl_module_specs={"one": spec, "two": spec}).build(seed=0)
    assert isinstance(built, MultiRLModule)
    return built


def shapes_of(state: Any) -> Any:
    return {k: shapes_of(v) for k, v in state.items()} if isinstance(state, dict) else list(np.shape(state))


def counter_in(path: Path) -> int:
    """The number that the whole checkpoint holds everywhere."""
    state = MultiRLModule.from_checkpoint(path).get_state()
    numbers = np.unique(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state)]))
    assert len(numbers) == 1, numbers
    return int(numbers[0])


@pytest.mark.parametrize("way", list(NUM_KILLS))
def test_kills(modules, tmp_path, way):
    description = tmp_path / "description.json"
    component = dataclasses.asdict(modules.describe_component())
    description.write_text(json.dumps({"component": component, "shapes": shapes_of(modules.get_state())}))
    place = tmp_path / "place"
    path = place / "it"
    zero = jax.tree.map(np.zeros_like, modules.get_state())
    modules.save_to_path(path, state=zero)
    before, leftovers, num_newer = 0, 0, 0
    script = Path(__file__).with_name("saves_to_kill.py")
    arguments = [str(path), str(description), str(NUM_KILLS[way]), way]
    root = script.parents[2]
    with subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        for _ in range(NUM_KILLS[way]):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            saved, begun = map(int, line.split())
            leftovers += len(os.listdir(place)) - 1
            found = counter_in(path)
            assert before <= saved <= found <= begun
            num_newer += found > before
            before = found
            print(found, file=process.stdin, flush=True)
        assert process.wait(60) == 0, process.stderr.read()
    # The kills did hit saves, and did let others end.
    assert leftovers > NUM_KILLS[way] / 4
    assert num_newer > NUM_KILLS[way] / 2
    modules.save_to_path(path)
    assert os.listdir(place) == ["it"]
