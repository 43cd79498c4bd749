"""Evaluation on data: the learner's loss on rows that training never sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.experience import Experience, num_rows_of
from jaxrl_stack.execution.host_place import mean_results
from jaxrl_stack.utils.devices import device_numbers
from jaxrl_stack.utils.results import NUM_STEPS_EVALUATED, merge_nested
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.execution.local_driver import LocalDriver


class DataEvaluation:
    """Computes the loss of the learner's modules on what `TrainingStep.held_out_rows` returns; it updates nothing.

    It stands beside the evaluation that acts in an environment, and both are parts of one result. Random layers draw
    from a seed of the evaluation, and learner, metrics and random numbers of training stay as they are.

    Args:
        driver: Has its learners and a planned training step.
        rows: What that step holds out now.

    Raises:
        ValueError: If the rows do not fit modules or devices; names the method of the training step.
        TypeError: If they are no rows.
    """

    def __init__(self, driver: LocalDriver, rows: Experience):
        self._driver = driver
        self._checked(rows)

    def _checked(self, rows: Experience | None) -> Experience:
        """The rows, if they fit the learners."""
        driver = self._driver
        method = f"{type(driver.step).__name__}.held_out_rows()"
        if not isinstance(rows, Experience) or not rows.is_rows:
            raise TypeError(
                f"{method} returned {type(rows).__name__}, and before it rows to evaluate on: return "
                f"Experience.of_rows({{module_id: {{column: [N, ...]}}}}), or always None."
            )
        num_rows = {mid: num_rows_of(columns) for mid, columns in rows.modules.items()}
        if not num_rows or not all(num_rows.values()):
            raise ValueError(f"{method} returned {num_rows} rows: return at least one, or None for no evaluation.")
        unknown = sorted(num_rows.keys() - set(driver.module_ids))
        if unknown:
            raise ValueError(f"{method} returned rows of {unknown}; the modules are {list(driver.module_ids)}.")
        num_devices = driver.learner_group.get_stats()["num_devices"]
        if any(n % num_devices for n in num_rows.values()):
            raise ValueError(
                f"{method} returned {num_rows} rows, which cannot be dealt out to the {num_devices} device(s) of the "
                f"learners evenly (num_learners, num_cpus_per_learner, num_gpus_per_learner): return a multiple of "
                f"{num_devices}."
            )
        return rows

    def evaluate(self, iteration: int, call: int) -> dict[str, Any]:
        """One evaluation.

        Args:
            iteration: Iterations done.
            call: Evaluations since then.

        Returns:
            ``{"offline_eval_runners": {module_id: {"total_eval_loss": float, ...}, ...}}``: of each module its loss,
            what the loss logs, and how many steps those are of.
        """
        driver = self._driver
        rows = self._checked(driver.step.held_out_rows())
        seed = derived_seed("evaluation on data", driver.config.root_seed, iteration, call)
        learner, own, num_shares = driver.learner, rows, 1
        if learner is not None and learner.num_devices > len(learner.devices):
            # Each of joined processes has all rows, and evaluates those of its devices.
            num_shares = learner.num_devices // len(learner.devices)
            own = rows.split(num_shares)[device_numbers(learner.devices).start // len(learner.devices)]
        found = driver.learner_group.evaluate_rows(own, seed=seed, timesteps=driver.num_env_steps)
        results = mean_results(found)
        for module_id in rows.modules.keys() & results.keys():
            of_module = results[module_id]
            num_steps = of_module[NUM_STEPS_EVALUATED] * num_shares
            of_module[NUM_STEPS_EVALUATED] = of_module["module_sample_batch_size_mean"] = num_steps
            of_module["weights_seq_no"] = driver.num_updates
        counts = {"num_env_steps_sampled": rows.num_env_steps, "dataset_num_iters_evaluated": 1}
        merge_nested(results, {ALL_MODULES: counts, "weights_seq_no": driver.num_updates})
        return {"offline_eval_runners": results}
