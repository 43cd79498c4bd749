"""Column names of batches, shared by connectors, modules and losses."""

from __future__ import annotations

from typing import Any


class Columns:
    """Names of the columns in a batch `{module_id: {column: pytree}}`; the strings are the same as RLlib's.

    `TERMINATEDS` and `TRUNCATEDS` are always two columns. Some columns have no counterpart in RLlib:

    * `FINAL_OBS` is the module's input for the observation before an auto-reset, from which a truncated step
      bootstraps.
    * `RESETS`, bool, comes with `STATE_IN`: whether a step is the first of its episode.
    * `DISCOUNT`, float32, is the factor of a step by which ``gamma`` is multiplied.
    * `N_STEP_DISCOUNT`, float32, is the product of the factors of a transition.
    """

    # Values of the environment.
    OBS = "obs"
    INFOS = "infos"
    NEXT_OBS = "new_obs"
    FINAL_OBS = "final_obs"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    DISCOUNT = "discount"

    # Actions, as the module computed them and as the environment received them.
    ACTIONS = "actions"
    ACTIONS_FOR_ENV = "actions_for_env"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTION_PROB = "action_prob"
    ACTION_LOGP = "action_logp"

    # Origin of a row.
    EPS_ID = "eps_id"
    AGENT_ID = "agent_id"
    MODULE_ID = "module_id"
    SEQ_LENS = "seq_lens"
    T = "t"

    # Recurrent state and shared features.
    STATE_IN = "state_in"
    NEXT_STATE_IN = "next_state_in"
    STATE_OUT = "state_out"
    NEXT_STATE_OUT = "next_state_out"
    RESETS = "resets"
    EMBEDDINGS = "embeddings"

    # Values and targets of learning.
    VF_PREDS = "vf_preds"
    VALUES_BOOTSTRAPPED = "values_bootstrapped"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    INTRINSIC_REWARDS = "intrinsic_rewards"
    RETURNS_TO_GO = "returns_to_go"
    RETURNS_SO_FAR = "returns_so_far"
    N_STEP_DISCOUNT = "n_step_discount"

    # False in rows that losses, statistics and counters ignore.
    LOSS_MASK = "loss_mask"


STEP_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
"""Columns of every step of a rollout, for all modules."""

NOT_MODEL_OUTPUTS = frozenset({*STEP_COLUMNS, Columns.FINAL_OBS, Columns.LOSS_MASK, Columns.RESETS})
"""Columns of a rollout; all others are outputs of the module."""


def declared_columns(owner: Any) -> tuple[str, ...]:
    """Returns the names of the additional columns that a Learner, RLModule or ConnectorV2 reads.

    The object declares these names in `columns_from_acting`. They are columns of sampled steps (such as outputs of
    ``forward_exploration``), read in addition to the standard columns.

    Names of base classes are added. If a class defines the attribute as a property, its result includes them.

    Args:
        owner: A Learner, an RLModule or a ConnectorV2.

    Raises:
        ValueError: If the attribute of a class is not a tuple of names.
    """
    names: list[str] = []
    for cls in type(owner).__mro__:
        own = vars(cls).get("columns_from_acting", ())
        is_property = isinstance(own, property)
        if is_property:
            own = own.__get__(owner)
        if isinstance(own, str) or not all(isinstance(name, str) for name in own):
            raise ValueError(
                f"{cls.__name__}.columns_from_acting = {own!r} must be a tuple of names of columns: "
                f'columns_from_acting = ("my_column",).'
            )
        names += own
        if is_property:
            break
    return tuple(dict.fromkeys(names))
