"""Custom network (RLModule) for PPO in Pendulum.

jaxrl train file skeleton.py
"""

from __future__ import annotations

from flax import nnx

from jaxrl_stack import Columns, PPOConfig, RLModule, RLModuleSpec, ValueFunctionAPI


class SkeletonModule(RLModule, ValueFunctionAPI):
    """An MLP with heads for actions and for values."""

    # What is computed for a row depends on no other row. Take this out for batch normalisation.
    rows_are_independent = True

    def setup(self):
        width = self.model_config["width"]
        # For discrete actions their logits; for continuous ones means and log standard deviations, one after the other.
        num_inputs = self.get_train_action_dist_cls().required_input_dim(self.action_space)
        self.first = nnx.Linear(self.observation_space.shape[0], width, rngs=self.rngs)
        self.second = nnx.Linear(width, width, rngs=self.rngs)
        self.policy = nnx.Linear(width, num_inputs, rngs=self.rngs)
        self.value = nnx.Linear(width, 1, rngs=self.rngs)

    def _forward(self, batch, **kwargs):
        features = nnx.tanh(self.second(nnx.tanh(self.first(batch[Columns.OBS]))))
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch, embeddings=None):
        """Returns state values [...], one per observation; calls `_forward` for `embeddings` if none are passed."""
        if embeddings is None:
            embeddings = self._forward(batch)[Columns.EMBEDDINGS]
        return self.value(embeddings)[..., 0]


config = PPOConfig.tuned("gymnax/Pendulum-v1").rl_module(
    rl_module_spec=RLModuleSpec(module_class=SkeletonModule, model_config={"width": 64})
)
stop = {"env_runners/episode_return_mean": -300.0, "num_env_steps_sampled_lifetime": 400_000}
