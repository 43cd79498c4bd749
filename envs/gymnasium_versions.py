"""The JAX environments of this package with gymnasium's interface, for sampling on the host.

``environment("envs.gymnasium_versions:GymnasiumCounterEnv", env_config={"terminate_at": 5})`` is sampled by runners.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from envs.counter import CounterEnv
from envs.fixed_length import FixedLengthEnv
from envs.nested import NestedActionEnv, NestedObservationEnv
from envs.probes import (
    ActionRewardProbe,
    ConstantValueProbe,
    DiscountingProbe,
    ObservationProbe,
    TruncationBootstrapProbe,
)
from jaxrl_stack.env.jax_env import AutoResetJaxEnv
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.examples.envs.memory import RepeatFirst, StatelessCartPole, StatelessPendulum, TMaze


class GymnasiumVersion(GymnasiumFromJax):
    """Base of the environments of this module: a `gymnasium.Env` with the dynamics of `jax_class`.

    Args:
        config: Settings of the environment.
    """

    jax_class: ClassVar[type[AutoResetJaxEnv]]

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(self.jax_class, config)


class GymnasiumCounterEnv(GymnasiumVersion):
    """`CounterEnv` on the host."""

    jax_class = CounterEnv


class GymnasiumFixedLengthEnv(GymnasiumVersion):
    """`FixedLengthEnv` on the host."""

    jax_class = FixedLengthEnv


class GymnasiumNestedObservationEnv(GymnasiumVersion):
    """`NestedObservationEnv` on the host."""

    jax_class = NestedObservationEnv


class GymnasiumNestedActionEnv(GymnasiumVersion):
    """`NestedActionEnv` on the host."""

    jax_class = NestedActionEnv


class GymnasiumConstantValueProbe(GymnasiumVersion):
    """`ConstantValueProbe` on the host."""

    jax_class = ConstantValueProbe


class GymnasiumDiscountingProbe(GymnasiumVersion):
    """`DiscountingProbe` on the host."""

    jax_class = DiscountingProbe


class GymnasiumActionRewardProbe(GymnasiumVersion):
    """`ActionRewardProbe` on the host."""

    jax_class = ActionRewardProbe


class GymnasiumObservationProbe(GymnasiumVersion):
    """`ObservationProbe` on the host."""

    jax_class = ObservationProbe


class GymnasiumTruncationBootstrapProbe(GymnasiumVersion):
    """`TruncationBootstrapProbe` on the host."""

    jax_class = TruncationBootstrapProbe


class GymnasiumRepeatFirst(GymnasiumVersion):
    """`RepeatFirst` on the host."""

    jax_class = RepeatFirst


class GymnasiumTMaze(GymnasiumVersion):
    """`TMaze` on the host."""

    jax_class = TMaze


class GymnasiumStatelessCartPole(GymnasiumVersion):
    """`StatelessCartPole` on the host."""

    jax_class = StatelessCartPole


class GymnasiumStatelessPendulum(GymnasiumVersion):
    """`StatelessPendulum` on the host."""

    jax_class = StatelessPendulum


GYMNASIUM_VERSIONS: tuple[type[GymnasiumVersion], ...] = (
    GymnasiumCounterEnv,
    GymnasiumFixedLengthEnv,
    GymnasiumNestedObservationEnv,
    GymnasiumNestedActionEnv,
    GymnasiumConstantValueProbe,
    GymnasiumDiscountingProbe,
    GymnasiumActionRewardProbe,
    GymnasiumObservationProbe,
    GymnasiumTruncationBootstrapProbe,
    GymnasiumRepeatFirst,
    GymnasiumTMaze,
    GymnasiumStatelessCartPole,
    GymnasiumStatelessPendulum,
)
