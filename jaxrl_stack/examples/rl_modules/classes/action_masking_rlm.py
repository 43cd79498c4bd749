"""PPO's default networks with action masks, under the names of RLlib's example."""

from __future__ import annotations

import gymnasium as gym

from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule


class ActionMaskingRLModule(DefaultPPORLModule):
    """PPO's default networks, which accept only observations of the form ``{"action_mask": ..., "observations": ...}``.

    The default networks heed such masks anyway: a masked action has probability zero while acting and in the loss. This
    class only refuses environments without a mask.

    Raises:
        ValueError: The observation space is another one.
    """

    def setup(self) -> None:
        space = self.observation_space
        if not (isinstance(space, gym.spaces.Dict) and {"action_mask", "observations"} <= space.spaces.keys()):
            raise ValueError(
                f"{type(self).__name__}: the observation space is {space}. It has to be gym.spaces.Dict(action_mask="
                "Box(0.0, 1.0, (n,)), observations=...); without masks use DefaultPPORLModule."
            )
        super().setup()
