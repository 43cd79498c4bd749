"""Evaluation on held-out data: the learner's loss on recorded steps that training never uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.experience import Experience, num_rows_of
from jaxrl_stack.execution.host_place import mean_results
from jaxrl_stack.offline.row_losses import row_losses
from jaxrl_stack.utils.devices import device_numbers
from jaxrl_stack.utils.results import NUM_STEPS_EVALUATED, merge_nested
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.execution.local_driver import LocalDriver


class HeldOutRows:
    """Source of batches for evaluation (`RowSource`): returns the recorded steps of `TrainingStep.held_out_rows`, which
    training does not use.

    Args:
        driver: Driver with learners and a planned training step.
        rows: Present held-out rows of that step.

    Raises:
        ValueError: If the rows do not fit modules or devices; names the method of the training step.
        TypeError: If they are not rows.
    """

    def __init__(self, driver: LocalDriver, rows: Experience):
        self._driver = driver
        self._checked(rows)

    def draw(self) -> Experience:
        """Checks that the held-out steps (recorded steps that training does not use) fit the modules and devices, and
        returns these steps.

        Raises:
            ValueError, TypeError: See the class.
        """
        return self._checked(self._driver.step.held_out_rows())

    def _checked(self, rows: Experience | None) -> Experience:
        driver = self._driver
        method = f"{type(driver.step).__name__}.held_out_rows()"
        if not isinstance(rows, Experience) or not rows.is_rows:
            raise TypeError(
                f"{method} returned {type(rows).__name__}, but has to return an Experience of N recorded rows. Return "
                "Experience.of_rows({module_id: {column: array [N, ...]}}) in every call, or return None in every call "
                "for no evaluation on data."
            )
        num_rows = {mid: num_rows_of(columns) for mid, columns in rows.modules.items()}
        if not num_rows or not all(num_rows.values()):
            raise ValueError(
                f"{method} returned too few rows: {num_rows} (rows per module). Return at least one row for each "
                "module in the result, or None in every call for no evaluation on data."
            )
        unknown = sorted(num_rows.keys() - set(driver.module_ids))
        if unknown:
            raise ValueError(
                f"{method} returned rows of unknown modules {unknown}. Return rows of {list(driver.module_ids)} only."
            )
        num_devices = driver.learner_group.get_stats()["num_devices"]
        if any(n % num_devices for n in num_rows.values()):
            raise ValueError(
                f"{method} returned {num_rows} rows, which must be a multiple of the learners' {num_devices} devices "
                "(num_learners, num_cpus_per_learner, num_gpus_per_learner). Return a multiple of "
                f"{num_devices} for each module."
            )
        return rows


class HeldOutEvaluation:
    """Computes the learner's losses on held-out recorded steps, without an update.

    The losses are reported next to the results of an evaluation in an environment, if there is one. Random layers use
    a seed of the evaluation; learner, metrics and random streams of training do not change.

    Args:
        driver: Driver with learners.
        rows: The held-out rows.
    """

    def __init__(self, driver: LocalDriver, rows: HeldOutRows):
        self._driver, self._rows = driver, rows

    def evaluate(self, iteration: int, call: int) -> dict[str, Any]:
        """Runs one evaluation: computes the losses on the held-out steps, and returns them as entries of the
        iteration's result.

        Args:
            iteration: Iterations done.
            call: Number of earlier evaluations since the last iteration.

        Returns:
            ``{"offline_eval_runners": {module_id: {"total_eval_loss": float, ...}, ...}}``: for each module the loss,
            the values that the loss logs, and the number of steps.
        """
        driver = self._driver
        seed = derived_seed("evaluation on data", driver.config.root_seed, iteration, call)
        losses = row_losses(self._rows, self._evaluate_in_learners, seed=seed, timesteps=driver.num_env_steps)
        results: dict[str, Any] = losses.values
        for module_id, number in losses.num_steps.items():
            counts = {NUM_STEPS_EVALUATED: number, "module_sample_batch_size_mean": number}
            results[module_id] |= {**counts, "weights_seq_no": driver.num_updates}
        counts = {"num_env_steps_sampled": losses.num_env_steps, "dataset_num_iters_evaluated": 1}
        merge_nested(results, {ALL_MODULES: counts, "weights_seq_no": driver.num_updates})
        return {"offline_eval_runners": results}

    def _evaluate_in_learners(self, rows: Experience, *, seed: int, timesteps: int) -> dict[str, Any]:
        """Computes the losses of held-out rows in all learners, and averages them; see `Learner.evaluate_rows`."""
        group, learner = self._driver.learner_group, self._driver.learner
        if learner is None or learner.num_devices <= len(learner.devices):
            return mean_results(group.evaluate_rows(rows, seed=seed, timesteps=timesteps))
        # Each of joined processes has all rows, and evaluates those of its devices.
        num_shares = learner.num_devices // len(learner.devices)
        own = rows.split(num_shares)[device_numbers(learner.devices).start // len(learner.devices)]
        results = mean_results(group.evaluate_rows(own, seed=seed, timesteps=timesteps))
        for module_id in rows.modules.keys() & results.keys():
            results[module_id][NUM_STEPS_EVALUATED] *= num_shares
        return results
