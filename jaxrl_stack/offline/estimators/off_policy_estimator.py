"""RLlib's interface of off-policy estimators, implemented with `jaxrl_stack.policy.estimation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from jaxrl_stack.policy.estimation import Estimate, Estimates, estimate
from jaxrl_stack.policy.recorded_actions import ActingBy

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.policy.policy import Policy


class OffPolicyEstimator:
    """Base class of off-policy estimators; each subclass uses one estimation method, such as importance sampling.

    Args:
        policy: A Policy, or an RLModule with its weights.
        gamma: Discount.
        epsilon_greedy: Probability of a random action instead of the policy's action, for Discrete actions.
        explore: Whether the policy draws its actions; False: it takes the greedy ones.
        confidence: Confidence of the intervals, between 0 and 1.
        num_resamples: Number of bootstrap resamples of the episodes.
        seed: Seed of the bootstrap, of sampled actions, and of fitted Q evaluation.

    Attributes:
        method: Name of the method, as `Policy.estimate` takes it.
    """

    method: ClassVar[str]

    def __init__(
        self,
        policy: Policy | RLModule,
        gamma: float = 0.99,
        epsilon_greedy: float = 0.0,
        *,
        explore: bool = True,
        confidence: float = 0.95,
        num_resamples: int = 1000,
        seed: int = 0,
    ):
        self.policy = policy
        self.gamma = gamma
        self.epsilon_greedy = epsilon_greedy
        self._how: dict[str, Any] = {
            "acting": ActingBy(explore, epsilon_greedy),
            "confidence": confidence,
            "num_resamples": num_resamples,
            "seed": seed,
        }

    @property
    def q_model_config(self) -> Mapping[str, Any] | None:
        """Settings of fitted Q evaluation (see `FittedQConfig`); None for estimators without a Q function."""
        return None

    def estimate(self, batch: Any, split_batch_by_episode: bool = True) -> dict[str, float]:
        """Estimates the return of the policy from recorded episodes.

        Args:
            batch: Recorded steps: paths, or what `open_dataset` or ``Dataset.read_all`` returned.
            split_batch_by_episode: Must be True: estimates need the steps of whole episodes.

        Returns:
            RLlib's numbers, "v_behavior", "v_target", "v_gain", "v_delta", and the ends of the interval, "v_target_low"
            and "v_target_high", "effective_sample_size" (NaN without ratios) and "is_reliable" (1 or 0).

        Raises:
            ValueError: See `Policy.estimate`.
        """
        if not split_batch_by_episode:
            raise ValueError(
                "split_batch_by_episode=False is not supported: estimates need whole episodes. Leave it at True."
            )
        found = self.estimates(batch)
        return results_of(found[self.method], found)

    def estimates(self, batch: Any) -> Estimates:
        """Estimates the return of the policy from recorded episodes, with a confidence interval and diagnostics; see
        `Policy.estimate`.
        """
        module: Any = getattr(self.policy, "module", self.policy)
        return estimate(
            module, batch, methods=self.method, gamma=self.gamma, q_model_config=self.q_model_config, **self._how
        )

    def train(self, batch: Any) -> dict[str, Any]:
        """Does nothing, because `estimate` fits the Q function to the data that it receives."""
        return {}


def results_of(own: Estimate, found: Estimates) -> dict[str, float]:
    """Converts an off-policy estimate to the metrics that RLlib reports, such as "v_target".

    Args:
        own: The estimate.
        found: Those that it is one of.
    """
    behavior = found.behavior.value
    size = own.effective_sample_size
    return {
        "v_behavior": behavior,
        "v_target": own.value,
        "v_target_low": own.low,
        "v_target_high": own.high,
        "v_gain": own.value / max(behavior, 1e-8),
        "v_delta": own.value - behavior,
        "effective_sample_size": float("nan") if size is None else size,
        "is_reliable": float(own.is_reliable),
        "num_episodes": found.num_episodes,
    }
