"""`DEFAULT_POLICY_ID` and the column names (`SampleBatch`) under their RLlib import path.

Batches are plain dicts in this package, so that `SampleBatch` cannot be instantiated.
"""

from __future__ import annotations

from typing import Any

from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core import DEFAULT_POLICY_ID
from jaxrl_stack.core.columns import Columns


class SampleBatch(Columns):
    """RLlib's old class of column names: ``SampleBatch.OBS`` is ``Columns.OBS``. It cannot be
    instantiated, because batches are plain dicts.

    Raises:
        TypeError: When called.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        raise TypeError(
            "SampleBatch cannot be instantiated, because batches are plain dicts. Create a dict instead: "
            "{module_id: {Columns.OBS: array, ...}}."
        )


_BATCH = "a dict {module_id: {Columns.OBS: array, ...}}"
__getattr__ = absent_or_renamed(
    __name__,
    absent={
        "MultiAgentBatch": _BATCH,
        "concat_samples": f"np.concatenate for each column of {_BATCH}",
        "concat_samples_into_ma_batch": _BATCH,
        "convert_ma_batch_to_sample_batch": f"batch[module_id] of {_BATCH}",
        "attempt_count_timesteps": "len(batch[module_id][Columns.OBS])",
    },
)


__all__ = ["DEFAULT_POLICY_ID", "SampleBatch"]
