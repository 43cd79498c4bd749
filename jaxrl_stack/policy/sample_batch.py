"""RLlib's path to `DEFAULT_POLICY_ID` and to the names of columns; batches are plain dicts here."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.core import DEFAULT_POLICY_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.renamed import absent_or_renamed


class SampleBatch(Columns):
    """The names of columns by their old home: ``SampleBatch.OBS`` is ``Columns.OBS``. There are no objects of it.

    Raises:
        TypeError: When called: a batch is a dict.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        raise TypeError("SampleBatch(...): a batch is a dict {module_id: {Columns.OBS: array, ...}} here.")


def __getattr__(name: str) -> Any:
    batch = "a dict {DEFAULT_MODULE_ID: {Columns.OBS: array, ...}}"
    absent = {
        "MultiAgentBatch": batch,
        "concat_samples": f"np.concatenate for each column of {batch}",
        "concat_samples_into_ma_batch": batch,
        "convert_ma_batch_to_sample_batch": f"batch[DEFAULT_MODULE_ID] of {batch}",
        "attempt_count_timesteps": "len(batch[DEFAULT_MODULE_ID][Columns.OBS])",
    }
    return absent_or_renamed(__name__, name, absent=absent)


__all__ = ["DEFAULT_POLICY_ID", "SampleBatch"]
