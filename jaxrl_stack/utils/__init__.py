"""Helpers for the whole package. The names in `_MODULES` can be imported from here, as from RLlib's package `utils`."""

# No `from __future__ import annotations`: it would hide this package's module of that name.
from jaxrl_stack.utils.lazy_names import lazy_names

# Imported when asked for: some of their modules import jax.
_MODULES = {
    "annotations": ("DeveloperAPI", "PublicAPI", "override"),
    "framework": ("try_import_jax", "try_import_tf", "try_import_tfp", "try_import_torch"),
    "numpy": (
        *("LARGE_INTEGER", "MAX_LOG_NN_OUTPUT", "MIN_LOG_NN_OUTPUT", "SMALL_NUMBER"),
        *("fc", "lstm", "one_hot", "relu", "sigmoid", "softmax"),
    ),
    ".compat.rllib_helpers": (
        *("add_mixins", "deep_update", "deprecation_warning", "flatten_dict", "force_list", "force_tuple"),
        *("merge_dicts", "unflatten_dict"),
    ),
    "schedules": (
        *("ConstantSchedule", "ExponentialSchedule", "LinearSchedule", "PiecewiseSchedule", "PolynomialSchedule"),
    ),
    "test_utils": ("check", "check_compute_single_action", "check_train_results"),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
