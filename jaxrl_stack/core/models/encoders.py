"""Networks (encoders) that map a batch's columns to latent features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.activations import get_activation
from jaxrl_stack.core.models.base import (
    ACTOR,
    CRITIC,
    ENCODER_OUT,
    Encoder,
    handles_resets,
    has_inputs,
    initial_state_of,
)
from jaxrl_stack.core.models.cnn import CNN
from jaxrl_stack.core.models.dense import Dense, LayerInput
from jaxrl_stack.core.models.mlp import MLP
from jaxrl_stack.core.observation_keys import selected_observation


class MLPEncoder(MLP, Encoder):
    """MLP over concatenated flat columns: `{column: [..., d]}` -> `{ENCODER_OUT: [..., latent]}`.

    Args:
        columns: Names of the columns, in the order of concatenation. The widths of the columns add up to `input_dim`.
        num_values: `{column: n}` for columns of ints `[...]` below n, which count as one-hot vectors of width n.
            Instead of building these vectors, the first layer looks up rows of its kernel.
        *args, **kwargs: As in `MLP`.
    """

    def __init__(
        self,
        *args: Any,
        columns: Sequence[str] = (Columns.OBS,),
        num_values: Mapping[str, int] | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.columns = tuple(columns)
        self.num_values = tuple((num_values or {}).get(column) for column in self.columns)

    def __call__(self, inputs: dict[str, Any]) -> dict[str, jax.Array]:  # type: ignore[override]
        parts = [LayerInput(inputs[column], n) for column, n in zip(self.columns, self.num_values, strict=True)]
        if self.activations and any(self.num_values):
            first: Dense = getattr(self, f"{self.kind}_0")
            return {ENCODER_OUT: self._from(1, self._after(0, first.of_parts(parts)))}
        return {ENCODER_OUT: super().__call__(side_by_side([part.as_floats() for part in parts]))}


class CNNEncoder(CNN, Encoder):
    """Convolutions over images: `{OBS: [..., H, W, C]}` -> `{ENCODER_OUT: [..., latent]}`.

    uint8 images are not converted before they reach this encoder.

    Args:
        scale_uint8: Whether uint8 images become ``x / 128 - 1``, in [-1, 1); else their values do not change.
        flatten_at_end: Whether the output is flattened to `[..., latent]`; else it is `[..., h, w, channels]`.
        *args, **kwargs: As in `CNN`.
    """

    def __init__(self, *args: Any, scale_uint8: bool = True, flatten_at_end: bool = True, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.scale_uint8 = scale_uint8
        self.flatten_at_end = flatten_at_end

    def __call__(self, inputs: dict[str, Any]) -> dict[str, jax.Array]:  # type: ignore[override]
        images = inputs[Columns.OBS]
        if self.scale_uint8 and images.dtype == jnp.uint8:
            images = images.astype(jnp.float32) / 128.0 - 1.0
        out = super().__call__(images)
        return {ENCODER_OUT: out.reshape(*out.shape[:-3], -1) if self.flatten_at_end else out}


class MultiStreamEncoder(Encoder):
    """One encoder for each of several columns, and a network that joins their latents: `{column: [..., d]}` ->
    `{ENCODER_OUT: [..., latent]}`.

    The first layer of the network receives the concatenated latents of all encoders. Every other layer receives the
    output of the layer before it, concatenated with these latents. Without layers, the output is the concatenated
    latents. The recurrent state is `{column: state}`, for columns with a recurrent encoder.

    Args:
        base_encoders: `{column: encoder of {OBS: [..., d]}}`.
        fusion_layers: Layers of the network that joins the latents.
        activations: Activation after each of these layers: names or callables.
        within: Column whose value is a dict of the encoders' inputs; None: the inputs are columns.
    """

    def __init__(
        self,
        base_encoders: Mapping[str, Any],
        fusion_layers: Sequence[Any],
        *,
        activations: Sequence[Any],
        within: str | None = None,
    ):
        self.within = within
        self.columns = tuple(sorted(base_encoders))
        self.base_encoders = nnx.Dict({column: base_encoders[column] for column in self.columns})
        self.fusion_layers = nnx.List(list(fusion_layers))
        # Kept as they are: a jitted function such as jnp.tanh cannot be pickled, its name can.
        self.activations = tuple(activations)

    @property
    def handles_resets(self) -> bool:
        """Whether all recurrent encoders restart from their initial state in the steps that the column ``RESETS``
        marks."""
        return all(handles_resets(self.base_encoders[column]) for column in self.get_initial_state())

    def get_initial_state(self) -> dict[str, Any]:
        states = {column: initial_state_of(self.base_encoders[column]) for column in self.columns}
        return {column: state for column, state in states.items() if state}

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        streams = inputs if self.within is None else inputs[self.within]
        encoded = {
            column: self.base_encoders[column]({Columns.OBS: streams[column], **_state_of(inputs, column)})
            for column in self.columns
        }
        embeddings = side_by_side([encoded[column][ENCODER_OUT] for column in self.columns])
        out = embeddings
        for i, (layer, activation) in enumerate(zip(self.fusion_layers, self.activations, strict=True)):
            joined = out if i == 0 else jnp.concatenate([out, embeddings], axis=-1)
            out = get_activation(activation)(layer(joined))
        states = {column: own[Columns.STATE_OUT] for column, own in encoded.items() if Columns.STATE_OUT in own}
        return {ENCODER_OUT: out, **({Columns.STATE_OUT: states} if states else {})}


def side_by_side(parts: Sequence[jax.Array]) -> jax.Array:
    """Broadcasts the leading axes of arrays and concatenates the arrays on the last axis.

    Example: N observations ``[N, 1, d]`` and K actions for each observation, ``[N, K, n]``, become ``[N, K, d + n]``.
    """
    leading = jnp.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return jnp.concatenate([jnp.broadcast_to(part, (*leading, part.shape[-1])) for part in parts], axis=-1)


class ObservationKeysEncoder(Encoder):
    """Encoder of some keys of Dict observations: `{OBS: {key: [..., d]}}` -> `{ENCODER_OUT: [..., latent]}`.

    Args:
        encoder: Encoder of the result of `selected_observation`.
        space: Dict space of the keys that the encoder reads; observations may have other keys.
    """

    def __init__(self, encoder: Any, space: gym.spaces.Dict):
        self.encoder = encoder
        self.space = space

    @property
    def handles_resets(self) -> bool:
        return handles_resets(self.encoder)

    def has_inputs(self, inputs: dict[str, Any]) -> bool:
        return set(self.space.spaces) <= set(inputs[Columns.OBS])

    def get_initial_state(self) -> Any:
        return initial_state_of(self.encoder)

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if not self.has_inputs(inputs):
            missing = [key for key in self.space.spaces if key not in inputs[Columns.OBS]]
            raise ValueError(
                f"Observations have no key {', '.join(map(repr, missing))}, which this network reads. Pass "
                f"observations with all of the keys {list(self.space.spaces)}."
            )
        return self.encoder({**inputs, Columns.OBS: selected_observation(self.space, inputs[Columns.OBS])})


class ActorCriticEncoder(Encoder):
    """Encoder with latents for the policy and the value function, from one shared encoder or from two.

    A shared encoder is the attribute `shared`; two encoders are the attributes `actor` and `critic`. In both cases,
    `actor_encoder` is the policy's encoder, and `critic_encoder` the value function's. The recurrent state is the state
    of the shared encoder, or `{ACTOR: state, CRITIC: state}` of two encoders.

    Args:
        build: Function that builds one encoder.
        shared: Whether policy and value function share one encoder.
        inference_only: Whether to leave out the critic's encoder, if it is not shared.
        build_critic: Function that builds the critic's encoder, if it differs from the policy's; None: `build`.
    """

    def __init__(
        self,
        build: Callable[[], Any],
        *,
        shared: bool,
        inference_only: bool = False,
        build_critic: Callable[[], Any] | None = None,
    ):
        self.is_shared = shared
        if shared:
            self.shared = build()
        else:
            self.actor = build()
            if not inference_only:
                self.critic = (build_critic or build)()

    @property
    def actor_encoder(self) -> Any:
        """Encoder that computes the policy's latents."""
        return self.shared if self.is_shared else self.actor

    @property
    def critic_encoder(self) -> Any:
        """Encoder that computes the value function's latents."""
        return self.shared if self.is_shared else self.critic

    @property
    def handles_resets(self) -> bool:
        """Whether the encoders of the policy and of the value function restart from their initial state in the steps
        that the column ``RESETS`` marks.
        """
        return handles_resets(self.actor_encoder)

    def get_initial_state(self) -> dict[str, Any]:
        state = initial_state_of(self.actor_encoder)
        return state if self.is_shared or not state else {ACTOR: state, CRITIC: initial_state_of(self.critic)}

    def __call__(self, inputs: dict[str, Any], critic: bool = True) -> dict[str, Any]:
        """Returns latents `{ENCODER_OUT: {ACTOR: [..., latent], CRITIC: [..., latent]}}` and, if recurrent,
        `STATE_OUT` of both encoders.

        If `critic` is False, CRITIC is missing. If observations then lack the critic's keys, the critic's recurrent
        state does not change.
        """
        if self.is_shared:
            of_both = self.shared(inputs)
            latents = dict.fromkeys((ACTOR, CRITIC) if critic else (ACTOR,), of_both[ENCODER_OUT])
            return {**of_both, ENCODER_OUT: latents}
        encoded = {ACTOR: self.actor({**inputs, **_state_of(inputs, ACTOR)})}
        if critic or (Columns.STATE_OUT in encoded[ACTOR] and has_inputs(self.critic, inputs)):
            encoded[CRITIC] = self.critic({**inputs, **_state_of(inputs, CRITIC)})
        elif Columns.STATE_OUT in encoded[ACTOR]:
            encoded[CRITIC] = {Columns.STATE_OUT: inputs[Columns.STATE_IN][CRITIC]}
        latents = {name: own[ENCODER_OUT] for name, own in encoded.items() if critic or name == ACTOR}
        states = {name: own[Columns.STATE_OUT] for name, own in encoded.items() if Columns.STATE_OUT in own}
        return {ENCODER_OUT: latents, **({Columns.STATE_OUT: states} if states else {})}

    def critic_latent(self, inputs: dict[str, Any]) -> jax.Array:
        """Computes only the value function's latent, `[..., latent]`."""
        own = inputs if self.is_shared else {**inputs, **_state_of(inputs, CRITIC)}
        return self.critic_encoder(own)[ENCODER_OUT]


def _state_of(inputs: dict[str, Any], part: str) -> dict[str, Any]:
    """Returns the recurrent state columns for one part of a recurrent encoder; {} if the part has no state.

    A part is the encoder of the actor, of the critic, or of one column. The columns are ``STATE_IN`` of this part, and
    ``RESETS`` if present.
    """
    if part not in inputs.get(Columns.STATE_IN, {}):
        return {}
    resets = {Columns.RESETS: inputs[Columns.RESETS]} if Columns.RESETS in inputs else {}
    return {Columns.STATE_IN: inputs[Columns.STATE_IN][part], **resets}
