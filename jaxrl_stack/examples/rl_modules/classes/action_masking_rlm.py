"""PPO's default networks with action masks, with the class name of RLlib's example."""

from __future__ import annotations

import gymnasium as gym

from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule


class ActionMaskingRLModule(DefaultPPORLModule):
    """PPO's default networks, but only for observations of the form ``{"action_mask": ..., "observations": ...}``.

    `DefaultPPORLModule` also applies such masks: a masked action has probability zero while acting and in the loss. The
    only difference is that this class refuses environments without a mask.

    Raises:
        ValueError: The observation space is not a Dict with these two keys.
    """

    def setup(self) -> None:
        space = self.observation_space
        if not (isinstance(space, gym.spaces.Dict) and {"action_mask", "observations"} <= space.spaces.keys()):
            raise ValueError(
                f"{type(self).__name__}: the observation space is {space}. It has to be gym.spaces.Dict(action_mask="
                "Box(0.0, 1.0, (n,)), observations=...); without masks use DefaultPPORLModule."
            )
        super().setup()
