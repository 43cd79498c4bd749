"""RLModule with attention to earlier steps: a transformer whose memory is the recurrent state."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule


class GTrXL(RLModule, ValueFunctionAPI):
    """RLModule of a gated transformer with memory (Parisotto et al., 2019, arXiv:1910.06764), with a policy head and a
    value head.

    Each layer attends to its own inputs in the last `memory_len` steps and in the present one, wherever in them a
    chunk begins: a pass over a sequence is that over its steps one by one. Nothing is seen of the time before the last
    True in ``RESETS``.

    The recurrent state is ``{"memory": float32 [num_layers, memory_len, width], "filled": int32 []}``: what went into
    each layer, the latest step last, and how many of these steps are of the present episode. With `num_layers` layers
    the oldest step that has an influence is ``num_layers * memory_len`` steps back.

    Observations are a Box of rank 1, actions of any space. Model config:

    * ``width`` (32), of every layer, and ``num_heads`` (2), which divides it;
    * ``num_layers`` (1) and ``memory_len`` (16);
    * ``gate_bias`` (2.0): the larger, the closer is each layer to the identity at first;
    * ``max_seq_len``: steps that gradients flow through, which need not be as many as are remembered.

    Raises:
        ValueError: If num_heads does not divide width.
    """

    rows_are_independent = True
    handles_resets = True

    def setup(self) -> None:
        (num_obs,) = cast(gym.spaces.Box, self.observation_space).shape
        self.width, self.memory_len = self.model_config.get("width", 32), self.model_config.get("memory_len", 16)
        num_inputs = self.get_train_action_dist_cls().required_input_dim(cast(gym.Space, self.action_space))
        self.embed = nnx.Linear(num_obs, self.width, rngs=self.rngs)
        self.layers = nnx.List(
            GatedTransformerLayer(
                self.width,
                num_heads=self.model_config.get("num_heads", 2),
                gate_bias=self.model_config.get("gate_bias", 2.0),
                rngs=self.rngs,
            )
            for _ in range(self.model_config.get("num_layers", 1))
        )
        self.policy = nnx.Linear(self.width, num_inputs, rngs=self.rngs)
        self.value = nnx.Linear(self.width, 1, rngs=self.rngs)

    def get_initial_state(self) -> dict[str, np.ndarray]:
        memory = np.zeros((len(self.layers), self.memory_len, self.width), np.float32)
        return {"memory": memory, "filled": np.zeros((), np.int32)}

    def _embed(self, batch: dict[str, Any]) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Computes embeddings from OBS ``[B, T, features]``, STATE_IN and optional RESETS ``[B, T]``. Returns the
        embeddings ``[B, T, width]``, and STATE_OUT.
        """
        obs, state = batch[Columns.OBS], batch[Columns.STATE_IN]
        resets = batch.get(Columns.RESETS, jnp.zeros(obs.shape[:2], bool))
        episode = jnp.cumsum(resets, axis=1)  # 0: that of the memory
        visible, filled = self._visible(episode, state["filled"])
        x, memory = self.embed(obs), []
        for i, layer in enumerate(self.layers):
            context = jnp.concatenate([state["memory"][:, i], x], axis=1)
            memory.append(context[:, context.shape[1] - self.memory_len :])
            x = layer(x, context, visible)
        return x, {"memory": jnp.stack(memory, axis=1), "filled": filled}

    def _visible(self, episode: jax.Array, filled: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the attention mask of each step, bool ``[B, T, memory_len + T]``, and the number of filled memory
        entries after the last step, int32 ``[B]``.

        Position ``memory_len + t`` is that of step t.
        """
        num_steps, size = episode.shape[1], self.memory_len
        in_memory = jnp.where(jnp.arange(size) >= size - filled[:, None], 0, -1)  # -1: of no episode
        episodes = jnp.concatenate([in_memory, episode], axis=1)
        back = size + np.arange(num_steps)[:, None] - np.arange(size + num_steps)
        visible = (episode[:, :, None] == episodes[:, None]) & (back >= 0) & (back <= size)
        return visible, jnp.minimum(jnp.sum(episodes == episode[:, -1:], axis=1, dtype=jnp.int32), size)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings, state = self._embed(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(embeddings), Columns.STATE_OUT: state}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings, _ = self._embed(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(embeddings), Columns.EMBEDDINGS: embeddings}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> jax.Array:
        """Computes values ``[B, T]`` of observations."""
        embeddings = self._embed(batch)[0] if embeddings is None else embeddings
        return self.value(embeddings)[..., 0]


class GatedTransformerLayer(nnx.Module):
    """Transformer layer: attention, then a per-step network, each with layer normalisation before and a gate after."""

    def __init__(self, width: int, *, num_heads: int, gate_bias: float, rngs: nnx.Rngs):
        self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
        self.attention = RelativeAttention(width, num_heads=num_heads, rngs=rngs)
        self.attention_gate = GRUGate(width, gate_bias, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(width, rngs=rngs)
        self.mlp = nnx.Sequential(
            nnx.Linear(width, 4 * width, rngs=rngs), nnx.relu, nnx.Linear(4 * width, width, rngs=rngs)
        )
        self.mlp_gate = GRUGate(width, gate_bias, rngs=rngs)

    def __call__(self, x: jax.Array, context: jax.Array, visible: jax.Array) -> jax.Array:
        """Applies the layer to `x`, the inputs of T steps.

        `x` and the result have the shape ``[B, T, width]``. Each step attends to entries of `context` ``[B, M + T,
        width]``: M memory entries, followed by `x`.
        """
        x = self.attention_gate(x, nnx.relu(self.attention(self.attention_norm(context), visible)))
        return self.mlp_gate(x, nnx.relu(self.mlp(self.mlp_norm(x))))


class GRUGate(nnx.Module):
    """Gate that combines a layer's input and output like a gated recurrent unit (Parisotto et al., 2019,
    section 3.2).
    """

    def __init__(self, width: int, bias: float, *, rngs: nnx.Rngs):
        self.from_new = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.from_old = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.from_reset = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.bias = nnx.Param(jnp.full((width,), bias, jnp.float32))

    def __call__(self, old: jax.Array, new: jax.Array) -> jax.Array:
        """Gates a layer's output `new` with its input `old`, both float ``[..., width]``; returns an array of the same
        shape.
        """
        (new_r, new_z, new_h), (old_r, old_z) = (
            jnp.split(self.from_new(new), 3, -1),
            jnp.split(self.from_old(old), 2, -1),
        )
        reset, update = nnx.sigmoid(new_r + old_r), nnx.sigmoid(new_z + old_z - self.bias[...])
        return (1.0 - update) * old + update * jnp.tanh(new_h + self.from_reset(reset * old))


class RelativeAttention(nnx.Module):
    """Attention with relative positions: by content and by distance (Dai et al., 2019, "Transformer-XL",
    arXiv:1901.02860, section 3.3).
    """

    def __init__(self, width: int, *, num_heads: int, rngs: nnx.Rngs):
        if width % num_heads:
            raise ValueError(f"num_heads={num_heads} has to divide width={width}: change one of them in model_config.")
        self.num_heads = num_heads
        self.query = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.key_value = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.distance = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.content_bias = nnx.Param(jnp.zeros((num_heads, width // num_heads), jnp.float32))
        self.distance_bias = nnx.Param(jnp.zeros((num_heads, width // num_heads), jnp.float32))

    def __call__(self, context: jax.Array, visible: jax.Array) -> jax.Array:
        """Computes the attention outputs of T steps. Each step attends to the entries of `context` (M memory entries,
        then the T steps) for which `visible` is True.

        Args:
            context: Float ``[B, M + T, width]``: the memory entries, then the steps.
            visible: bool ``[B, T, M + T]``: which entries each step attends to. No entry after the step is visible, and
                no entry more than M before it.

        Returns:
            Float ``[B, T, width]``.
        """
        num_rows, num_steps, num_all = visible.shape
        size, width = num_all - num_steps, context.shape[-1]

        def heads(x: jax.Array) -> jax.Array:
            return x.reshape(*x.shape[:-1], self.num_heads, width // self.num_heads)

        query = heads(self.query(context[:, size:]))
        keys, values = map(heads, jnp.split(self.key_value(context), 2, axis=-1))
        distances = heads(self.distance(_waves(np.arange(size, -1, -1), width)))
        by_content = jnp.einsum("bthd,bjhd->bhtj", query + self.content_bias[...], keys)
        by_distance = jnp.einsum("bthd,jhd->bhtj", query + self.distance_bias[...], distances)
        # Step t has the distances M, ..., 0 at the positions t, ..., t + M: rows with T zeros more, read as rows with
        # T - 1 zeros more, move to the right by one place each.
        by_distance = jnp.pad(by_distance, ((0, 0), (0, 0), (0, 0), (0, num_steps))).reshape(
            num_rows, self.num_heads, -1
        )
        by_distance = by_distance[..., : num_steps * num_all].reshape(by_content.shape)
        scores = (by_content + by_distance) / np.sqrt(width // self.num_heads)
        weights = nnx.softmax(jnp.where(visible[:, None], scores, -jnp.inf), axis=-1)
        return self.out(jnp.einsum("bhtj,bjhd->bthd", weights, values).reshape(num_rows, num_steps, width))


def _waves(positions: np.ndarray, width: int) -> jax.Array:
    """Encodes positions ``[N]`` as sines and cosines, with wavelengths from 2 pi to 20000 pi: float32 ``[N,
    width]``.
    """
    angles = positions[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)[:, :width], jnp.float32)
