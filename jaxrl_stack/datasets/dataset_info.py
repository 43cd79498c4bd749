"""Description of a data set, stored in its files: spaces, environment, seed and versions."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.utils.spaces import MAX_SPACE_ELEMENTS, num_described_entries, space_from_dict, space_to_dict

if TYPE_CHECKING:
    import gymnasium as gym


def versions_here() -> dict[str, str]:
    """Returns the installed versions of this package and of packages that its files depend on."""
    return {name: importlib.metadata.version(name) for name in ("jaxrl-stack", "gymnasium", "jax", "numpy")}


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """Description of recorded steps, stored in the files' metadata: spaces, environment, seed, agent and versions.

    Attributes:
        observation_space: Space of one observation as the environment gives it; None if it is not known.
        action_space: Space of one action of the environment; None if it is not known. Recorded actions are those of the
            module: in a bounded Box they are not yet scaled from [-1, 1] to the bounds.
        env_id: The environment's name.
        seed: Seed of the environment.
        agent_id, module_id: Agent and module of the steps.
        versions: ``{package: version}`` that recorded them.
        more: Further facts, as JSON types.
    """

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    env_id: str | None = None
    seed: int | None = None
    agent_id: str | None = None
    module_id: str | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=versions_here)
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Converts the description of a data set to JSON types.

        Raises:
            TypeError: A space has no description in JSON.
        """
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields.update({name: space_to_dict(fields[name]) for name in ("observation_space", "action_space")})
        fields.update({name: dict(fields[name]) for name in ("versions", "more")})
        return json.loads(json.dumps(fields))

    @classmethod
    def from_json(cls, fields: Any) -> DatasetInfo:
        """Creates the description of a data set from a result of `to_json`; ignores fields that later versions may add.

        Raises:
            ValueError: `fields` is no valid description.
        """
        kinds = {"env_id": str, "seed": int, "agent_id": str, "module_id": str, "versions": dict, "more": dict}
        if not isinstance(fields, dict):
            raise ValueError(f"the description of the data set is a {type(fields).__name__}, not a dict")
        own: dict[str, Any] = {}
        for name, kind in kinds.items():
            value = fields.get(name)
            if isinstance(value, kind):
                own[name] = value
            elif value is not None:
                raise ValueError(
                    f"{name!r} in the description of the data set has the type {type(value).__name__}, "
                    f"not {kind.__name__}"
                )
        for name in ("observation_space", "action_space"):
            described = fields.get(name)
            if num_described_entries(described) > MAX_SPACE_ELEMENTS:
                raise ValueError(
                    f"the arrays of the data set's {name} have more than the allowed {MAX_SPACE_ELEMENTS:,} entries "
                    "in total"
                )
            try:
                own[name] = space_from_dict(described)
            except (AssertionError, AttributeError, KeyError, OverflowError, RecursionError, TypeError) as error:
                raise ValueError(f"the description of the data set's {name} is damaged: {error!r}") from error
        return cls(**own)
