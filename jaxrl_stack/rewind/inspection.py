"""Inspection of one iteration: losses and gradients of its minibatches, its episodes, and the rows of batches with the
largest losses.

::

    inspection = Run.read("results/RUN").inspect(41)    # iteration 41, run again and recorded
    print(inspection)
    inspection.minibatch(3).layers                      # gradient norms of a minibatch by layer
    inspection.rows(5)                                  # the 5 rows with the largest losses
    inspection.to_html("iteration_41.html")
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.learner.losses import loss_is_linear
from jaxrl_stack.core.learner.minibatch_records import (
    APPLIED_GRADIENT,
    COLUMN,
    GRADIENT,
    METRIC,
    PARAMETER,
    ROW,
    ROW_MEAN,
    STEP,
    Recorder,
)
from jaxrl_stack.execution.finite_check import NotFiniteError
from jaxrl_stack.rewind.replay import Replay
from jaxrl_stack.runs.html_pages import html_page, html_section, write_text
from jaxrl_stack.runs.tables import Table, cell_text
from jaxrl_stack.runs.terminal import number_text
from jaxrl_stack.runs.writers import as_json

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.execution.iteration_record import IterationRecord
    from jaxrl_stack.runs.run import Run

NUM_ROWS = 20
_NUMBERS = ("minibatch", "update", "epoch")
_METRICS = ("total_loss", "policy_loss", "vf_loss", "entropy", "mean_kl_loss", "qf_loss", "td_error_mean")
"""Metrics in the tables of minibatches, if they exist; `MinibatchNumbers.metrics` has all."""
_OF_ROWS = ("actions", "rewards", "advantages", "value_targets", "vf_preds", "weights", "terminateds", "obs")
"""Columns of train batches that pages show; tables have all."""


_PLACE = ("device", "shard", "row", "sequence_step", "env", "step", "agent_slot")
"""Columns of the place of a row in its batch."""


@dataclasses.dataclass(frozen=True, repr=False)
class MinibatchNumbers:
    """Metrics and gradient norms of one minibatch, and its rows with the largest losses.

    Attributes:
        minibatch: Index of the minibatch in the iteration.
        update: Index of its update in the iteration.
        epoch: Index of its pass over the batch of the update.
        metrics: ``{module_id: {metric: number}}``, as the learner logs them.
        gradient_norm: Euclidean norm of the gradients of all parameters.
        applied_gradient_norm: The same after clipping, and other changes in `Learner.postprocess_gradients`.
        layers: Table of the layers: norms of the gradients before and after clipping, of the parameters, and of the
            step relative to the parameters.
        rows: Table of the rows with the largest losses, largest first; see `Inspection.rows`.
    """

    minibatch: int
    update: int
    epoch: int
    metrics: dict[str, dict[str, float]]
    gradient_norm: float
    applied_gradient_norm: float
    layers: Table
    rows: Table

    def __repr__(self) -> str:
        metrics = Table(
            [{"module": mid, "metric": n, "value": v} for mid, own in self.metrics.items() for n, v in own.items()]
        )
        head = (
            f"Minibatch {self.minibatch} (update {self.update}, epoch {self.epoch}): gradient norm "
            f"{cell_text(self.gradient_norm)}, {cell_text(self.applied_gradient_norm)} after clipping"
        )
        tables = [metrics.formatted(max_lines=None), self.layers.formatted(max_lines=None), repr(_short(self.rows))]
        return "\n\n".join([head, *tables])

    def as_dict(self) -> dict[str, Any]:
        """Returns all attributes of this minibatch as plain JSON types; a table becomes a list of its rows."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return as_json({name: list(value) if isinstance(value, Table) else value for name, value in own.items()})


class Inspection:
    """Recorded minibatches and episodes of one iteration; ``print(inspection)`` shows them as text.

    Args:
        iteration: Number of the iteration, from 1.
        title: Name of the run.
        numbers: Numbers of the minibatches.
        episodes: Ended episodes, see `episodes`.
        num_rows: Number of rows with large losses that each minibatch has recorded.
        notes: Remarks for readers, one sentence each.
        frames_of: Function from the index of an episode to its frames; None without frames.
        fps: Frames per second.

    Attributes:
        iteration, notes: See above.
        episodes: Table of the episodes that ended in the iteration: ``env`` (index of the environment) and ``end``
            (step of the iteration) on JAX environments, ``length`` and ``return``, and the agents' parts of the return.
    """

    def __init__(
        self,
        iteration: int,
        title: str,
        numbers: Sequence[MinibatchNumbers],
        episodes: Sequence[Mapping[str, Any]],
        num_rows: int,
        notes: Sequence[str],
        frames_of: Callable[[int], Iterator[np.ndarray]] | None = None,
        fps: float = 30.0,
    ):
        self._frames_of, self._fps = frames_of, fps
        self.iteration, self.notes = iteration, list(notes)
        self.episodes = Table(episodes, "No episode ended in this iteration.")
        self._title, self._numbers, self._num_rows = title, list(numbers), num_rows

    @property
    def minibatches(self) -> Table:
        """Table with one row per minibatch: index of the minibatch, its update and epoch, gradient norms, and the
        metrics of each module.
        """
        rows = []
        is_single = len({mid for own in self._numbers for mid in own.metrics}) == 1
        for own in self._numbers:
            metrics = {
                name if is_single else f"{mid}/{name}": value
                for mid, by_name in own.metrics.items()
                for name, value in by_name.items()
            }
            norms = {"gradient_norm": own.gradient_norm, "applied_gradient_norm": own.applied_gradient_norm}
            rows.append({"minibatch": own.minibatch, "update": own.update, "epoch": own.epoch, **norms, **metrics})
        return Table(rows, "The iteration made no update.")

    def minibatch(self, index: int) -> MinibatchNumbers:
        """Returns the record of one minibatch: its metrics, gradient norms, and rows with the largest losses.

        Args:
            index: Index of the minibatch in the iteration, from 0.

        Raises:
            IndexError: If the iteration has no such minibatch.
        """
        if not 0 <= index < len(self._numbers):
            have = (
                f"has the minibatches 0 to {len(self._numbers) - 1}. Choose one of these"
                if self._numbers
                else "made no update and has no minibatches. Inspect an iteration with updates"
            )
            raise IndexError(f"minibatch({index}): iteration {self.iteration} {have}.")
        return self._numbers[index]

    def rows(self, n: int | None = None) -> Table:
        """Returns a table of at most `n` rows of the train batch: the rows with the largest losses in the iteration.

        If several minibatches of an update contain the same row, the table contains this row once, with its largest
        loss.

        The mean of the losses of a minibatch's rows is its loss. Rows whose loss is NaN come first.

        Args:
            n: Number of rows; None for the number that each minibatch has recorded.

        Returns:
            Table with the ``module``, the ``minibatch`` and the ``loss`` of the largest loss, the place of the row, and
            the columns of the train batch. The place is ``env`` (index of the environment) and ``step`` (of the samples
            of the update) for sampled rows, and ``agent_slot`` if a module has several agents. Otherwise it is ``row``,
            the index in the batch of a device and shard, and ``sequence_step`` in sequences.

        Raises:
            ValueError: If fewer rows were recorded.
        """
        n = self._num_rows if n is None else n
        if n > self._num_rows:
            raise ValueError(
                f"rows(n={n}): for each minibatch, only the {self._num_rows} rows with the largest losses were "
                f"recorded. Use inspect(..., num_rows={n}).rows(n={n})."
            )
        largest: dict[Any, Mapping[str, Any]] = {}
        for own in self._numbers:
            for row in own.rows:
                # Updates from replay draw other rows for each update.
                identity = (own.update, *(row.get(name) for name in ("module", *_PLACE)))
                if identity not in largest or _order(row["loss"]) < _order(largest[identity]["loss"]):
                    largest[identity] = row
        found = sorted(largest.values(), key=lambda row: _order(row["loss"]))[:n]
        return Table(found, "No losses of rows.")

    def layers(self) -> Table:
        """Returns a table with one row per layer: the means of its norms and relative steps over the minibatches,
        and its largest gradient norm in a minibatch.
        """
        by_layer: dict[str, list[Mapping[str, Any]]] = {}
        for own in self._numbers:
            for row in own.layers:
                by_layer.setdefault(row["layer"], []).append(row)
        rows = []
        for layer, of_minibatches in by_layer.items():
            means = {
                name: float(np.mean([row[name] for row in of_minibatches]))
                for name in of_minibatches[0]
                if name != "layer"
            }
            most = float(np.max([row["gradient_norm"] for row in of_minibatches]))
            rows.append({"layer": layer, **means, "gradient_norm_max": most})
        return Table(rows, "The iteration made no update.")

    def frames(self, episode: int) -> list[np.ndarray]:
        """Returns the rendered frames of an episode, uint8 ``[H, W, 3]``: one frame before each step that the episode
        took in the inspected iteration.

        JAX environments that implement ``render`` have frames. Large states are recorded for the first environments
        only, so that other episodes have no frames.

        Args:
            episode: Index in `episodes`.

        Returns:
            The frames; [] if none were recorded.
        """
        if not 0 <= episode < len(self.episodes):
            raise IndexError(
                f"frames({episode}): no episode has this index. {len(self.episodes)} episodes ended in iteration "
                f"{self.iteration}; their indices begin at 0. See print(inspection.episodes)."
            )
        return [] if self._frames_of is None else list(self._frames_of(episode))

    def video(self, path: str | os.PathLike[str], episode: int) -> Path:
        """Writes the `frames` of an episode as ``.mp4``, ``.webm`` or ``.gif``; returns the path.

        Raises:
            ValueError: If the episode has no frames, or the path has another end.
            ImportError: If Pillow is not installed, and a gif is to be written.
        """
        frames = self.frames(episode)
        if not frames:
            raise ValueError(f"video(episode={episode}): no frames were recorded. Give the JAX environment a render().")
        return self._write_video(frames, path)

    def _write_video(self, frames: Sequence[np.ndarray], path: str | os.PathLike[str]) -> Path:
        from jaxrl_stack.videos.encoding import write_video

        return write_video([_even(frame) for frame in frames], path, self._fps)

    # ---------------------------------------------------------------------------------------------------------- views

    def _videos(self) -> str:
        """Returns HTML with videos of the episodes with the lowest and the highest return, if they have frames."""
        from jaxrl_stack.videos.video import player

        order = sorted(range(len(self.episodes)), key=lambda i: self.episodes[i]["return"])
        shown = []
        for name, episode in dict(zip(("lowest", "highest"), (*order[:1], *order[:0:-1][:1]), strict=False)).items():
            text = f"The episode with the {name} return, {number_text(self.episodes[episode]['return'])}"
            # Frames may need optional packages, and gifs need Pillow.
            with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ImportError):
                if frames := self.frames(episode):
                    written = self._write_video(frames, Path(folder) / "episode.gif")
                    shown.append(f"<figure>{player(written, text)}<figcaption>{text}</figcaption></figure>")
        return f'<div class="grid">{"".join(shown)}</div>' if shown else ""

    def _main_columns(self) -> Table:
        """Table of the minibatches with only the most important columns."""
        table = self.minibatches
        names = [*_NUMBERS, "gradient_norm", "applied_gradient_norm"]
        metrics = [name for name in table.columns if name.rpartition("/")[2] in _METRICS]
        metrics.sort(key=lambda name: _METRICS.index(name.rpartition("/")[2]))
        return table.with_columns([*names, *metrics])

    def _sections(self) -> dict[str, Table]:
        return {
            "Minibatches": self._main_columns(),
            "Layers": self.layers(),
            "Episodes": self.episodes,
            "Rows with the largest losses": _short(self.rows()),
        }

    @property
    def title(self) -> str:
        """Title of the inspection's HTML page."""
        return f"{self._title}, iteration {self.iteration}"

    def __repr__(self) -> str:
        parts = [self.title, *self.notes]
        return "\n\n".join([*parts, *(f"{name}\n{table}" for name, table in self._sections().items())])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        parts = "".join(f"<h4>{name}</h4>{table._repr_html_()}" for name, table in self._sections().items())
        return f"<h3>{html.escape(self.title)}</h3>{notes}{parts}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the whole inspection as plain JSON types; NaN and infinities become None."""
        tables = {"layers": self.layers(), "episodes": self.episodes, "rows": self.rows()}
        return {
            "title": self._title,
            "iteration": self.iteration,
            "notes": self.notes,
            "minibatches": [own.as_dict() for own in self._numbers],
            **{name: as_json(list(table)) for name, table in tables.items()},
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Returns the whole inspection as JSON, and writes it to `path`, if given."""
        return write_text(json.dumps(self.as_dict(), indent=1), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Returns an HTML page that needs no server and no network, and writes it to `path`, if given.

        Figures need matplotlib, ``pip install 'jaxrl-stack[plots]'``; the page leaves them out without it.
        """
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        parts = [html_section("Notes", notes), html_section("Losses and gradients", _figures(self.minibatches))]
        for name, table in self._sections().items():
            content = f'<div class="table">{table.formatted("html", max_lines=None)}</div>'
            content += self._videos() if table is self.episodes else ""
            parts.append(html_section(name, content))
        return write_text(html_page(self.title, "\n".join(filter(None, parts))), path)


def inspect(algorithm: Algorithm, num_training_steps: int | None = None, *, num_rows: int = NUM_ROWS) -> Inspection:
    """Trains an algorithm for one iteration, and returns the recorded minibatches and episodes of this iteration.

    A second program records each update before the program of training makes it. So the algorithm is afterwards exactly
    where `Algorithm.train` would have led. The iteration takes at least twice the time, and the memory of a second
    training state with its replay buffer.

    If a number that is not finite stops the iteration, as with ``debugging(check_nans=True)``, the inspection contains
    the minibatches up to the stop, and the error's message as a note. Such an iteration n of a run has no row in the
    history: ``inspect(run.at(n - 1))`` inspects it.

    Args:
        algorithm: The algorithm before the iteration. Its learner and its environments must be in this process.
        num_training_steps: Number of training steps of a recorded iteration that is repeated,
            ``num_training_step_calls_per_iteration`` in its result; None for the algorithm's own end of iterations.
        num_rows: Number of rows with large losses that each minibatch records.

    Raises:
        ValueError: If learners or environments are in actors or joined processes, or ``disable_jit`` is set.
        TypeError: If `algorithm` is a population.
        FloatingPointError: If the iteration is stopped before its first recorded minibatch.
    """
    if num_rows < 1:
        raise ValueError(f"inspect(num_rows={num_rows}): num_rows must be at least 1.")
    _check(algorithm)
    driver: Any = algorithm.driver
    iteration, stop = algorithm.iteration + 1, None
    with driver.recording(Recorder(num_rows)) as recorded:
        try:
            if num_training_steps is None:
                algorithm.train()
            else:
                algorithm._repeat_iteration(num_training_steps)
        except (FloatingPointError, NotFiniteError) as error:
            if not recorded.updates:
                raise
            stop = error
    inspection = _inspection(algorithm, iteration, recorded, num_rows)
    if stop is not None:
        inspection.notes.insert(0, f"The iteration stopped: {stop}")
    return inspection


def inspect_run(
    run: Run,
    iteration: int,
    *,
    num_rows: int = NUM_ROWS,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
) -> Inspection:
    """Inspects an iteration of a run; see `Run.inspect`."""
    if (num_members := run.origin.get("num_members") or 1) > 1:
        raise ValueError(
            f"{run.folder or run.name}: this run is one of {num_members} members of a population. It cannot be "
            "inspected, because repeating it as a separate run does not reproduce its results bit for bit. Train the "
            "member separately, with config.debugging(seed=...), and inspect that run."
        )
    replay = Replay(run, config=config, allow=allow)
    num_training_steps = replay.run_to_before(iteration)
    with replay.running():
        inspection = inspect(replay.trained, num_training_steps, num_rows=num_rows)
        is_whole = replay.trained.iteration == iteration
        if is_whole and replay.different_members(iteration):
            inspection.notes.append(
                f"The recomputed iteration {iteration} differs from the recorded one. See jaxrl verify {run.folder}."
            )
    return inspection


def _check(algorithm: Algorithm) -> None:
    """Raises an error if updates cannot be recorded: for a population, with actors, with ``disable_jit=True``, or in
    processes that ``distributed.initialize()`` has joined.
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(
            f"inspect() takes an Algorithm, not a {type(algorithm).__name__}. To inspect a "
            f"member of a population, train it separately: config.debugging(seed=...).build_algo()."
        )
    config = algorithm.config
    actors = {"num_learners": config.num_learners, "num_env_runners": config.num_sampling_actors}
    for name, number in actors.items():
        if number:
            method = name.removeprefix("num_")
            raise ValueError(
                f"inspect() with {name}={number}: a run with actors cannot record its updates. Set {method}({name}=0)."
            )
    if config.disable_jit:
        raise ValueError(
            "inspect() with disable_jit=True: only compiled updates can be recorded. Set debugging(disable_jit=False)."
        )
    learner = algorithm.learner_group.local_learner
    if learner is not None and learner.num_devices > len(learner.devices):
        raise ValueError(
            "inspect() does not support processes that distributed.initialize() has joined, because each of them has "
            "only a part of the batch. Run it in a single process, without distributed.initialize()."
        )


def _inspection(algorithm: Algorithm, iteration: int, recorded: IterationRecord, num_rows: int) -> Inspection:
    learner = algorithm.learner_group.local_learner
    assert learner is not None, "Learners in actors are refused before."
    numbers = list(_numbers(algorithm, recorded, num_rows))
    episodes = []
    for own in recorded.episodes:
        known = {"env": own.env, "end": own.time, "length": own.length, "return": own.episode_return}
        parts = {f"return of {agent}": part for agent, part in own.agent_returns.items()}
        episodes.append({name: value for name, value in (known | parts).items() if value is not None})
    notes = list(_notes(learner, recorded, numbers))
    title, env, drawings = type(algorithm).__name__, algorithm.config.env, recorded.drawings
    title = f"{title} on {env}" if isinstance(env, str) else title
    arguments = (iteration, title, numbers, episodes, num_rows, notes)
    if drawings is None:
        return Inspection(*arguments)
    num_envs = int(algorithm.config.num_envs_per_env_runner) // learner.num_devices

    def frames_of(index: int) -> Iterator[np.ndarray]:
        own = recorded.episodes[index]
        assert own.time is not None and own.env is not None, "Episodes of the device have places."
        return drawings.frames(own.env, num_envs, range(max(0, own.time - own.length + 1), own.time + 1))

    return Inspection(*arguments, frames_of, drawings.fps)


def _notes(learner: Learner, recorded: IterationRecord, numbers: Sequence[MinibatchNumbers]) -> Iterator[str]:
    name = type(learner).__name__
    if not numbers:
        yield "The iteration made no update: it only sampled, or no module is trained."
    elif not loss_is_linear(learner):
        yield (
            f"No losses of rows: {name} does not declare its loss a sum of means over rows (loss_is_linear_in_means = "
            f"False), of which each row has a share. The numbers of minibatches are complete."
        )
    elif (share := _unexplained(recorded)) > 1e-3:
        yield (
            f"The losses of rows leave {share:.2g} of the loss out. Compute all means of {name}'s loss with "
            f"self.masked_means(), or set loss_is_linear_in_means = False."
        )
    if (first := next((own.minibatch for own in numbers if _has_nan_loss(own)), None)) is not None:
        yield f"Losses are NaN, first in minibatch {first}."
    if not recorded.is_exact:
        yield (
            "The recording program rounds differently from the program of training: its numbers may differ in the last "
            "digits. The algorithm has the parameters of the program of training."
        )
    if recorded.num_other_episodes:
        yield (
            f"{recorded.num_other_episodes} more episodes ended. Set reporting(metrics_num_episodes_for_smoothing=...) "
            f"to the number of episodes of an iteration to see all."
        )


def _has_nan_loss(numbers: MinibatchNumbers) -> bool:
    losses = [row["loss"] for row in numbers.rows]
    # A metric may be NaN where it has no value.
    losses = losses or [own["total_loss"] for own in numbers.metrics.values() if "total_loss" in own]
    return any(map(math.isnan, losses))


def _unexplained(recorded: IterationRecord) -> float:
    """Largest relative difference between the loss of a recorded minibatch and the mean of its rows' losses.

    The difference is divided by ``max(1, abs(loss))``. A large value means that the rows' losses do not include a part
    of the minibatch's loss. NaN and infinite differences are ignored.
    """
    most = 0.0
    for record in recorded.updates:
        for path, means in record.items():
            if path[0] == ROW_MEAN:
                loss = record[METRIC, path[1], "total_loss"]
                difference = np.abs(means - loss) / np.maximum(np.abs(loss), 1.0)
                most = max(most, float(np.max(difference, initial=0.0, where=np.isfinite(difference))))
    return most


def _numbers(algorithm: Algorithm, recorded: IterationRecord, num_rows: int) -> Iterator[MinibatchNumbers]:
    """Yields the metrics, the gradient norms, and the rows with the largest losses of each recorded minibatch of an
    iteration.
    """
    num_epochs = int(getattr(algorithm.config, "num_epochs", None) or 1)
    number = 0
    for update, record in enumerate(recorded.updates):
        first = next(iter(record.values()))
        rows = _rows(record, recorded, num_rows)
        num_minibatches = first.shape[1]
        for i in range(num_minibatches):
            metrics: dict[str, dict[str, float]] = {}
            for (kind, module_id, *name), leaf in record.items():
                if kind == METRIC:
                    metrics.setdefault(module_id, {})["/".join(name)] = float(leaf[0, i])
            norms = {
                name: {path[1]: float(leaf[0, i]) for path, leaf in record.items() if path[0] == name}
                for name in (GRADIENT, APPLIED_GRADIENT, STEP, PARAMETER)
            }
            # The learner logs total losses last; readers look for them first.
            metrics = {mid: {**_first("total_loss", own), **own} for mid, own in metrics.items()}
            own = [{"module": row["module"], "minibatch": number, **row} for row in rows[i]]
            yield MinibatchNumbers(
                number,
                update,
                i * num_epochs // num_minibatches,
                {mid: own for mid, own in metrics.items() if mid != ALL_MODULES} | _first(ALL_MODULES, metrics),
                _total(norms[GRADIENT].values()),
                _total(norms[APPLIED_GRADIENT].values()),
                Table(_layers(norms)),
                Table(own, "No losses of rows."),
            )
            number += 1


def _first(name: str, of: Mapping[str, Any]) -> dict[str, Any]:
    return {name: of[name]} if name in of else {}


def _layers(norms: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Builds the rows of an inspection's table of layers, with the norms of gradients and parameters.

    A layer consists of the parameters whose paths differ only in the last part.
    """
    by_layer: dict[str, list[str]] = {}
    for ref in norms[GRADIENT]:
        by_layer.setdefault(ref.rpartition("/")[0] or ref, []).append(ref)
    rows = []
    for layer, refs in by_layer.items():
        total = {name: _total(own[ref] for ref in refs) for name, own in norms.items()}
        relative = total[STEP] / total[PARAMETER] if total[PARAMETER] else math.nan
        gradients = {"gradient_norm": total[GRADIENT], "applied_gradient_norm": total[APPLIED_GRADIENT]}
        rows.append({"layer": layer, **gradients, "parameter_norm": total[PARAMETER], "relative_step": relative})
    return rows


def _total(norms: Any) -> float:
    """Euclidean norm of a vector, computed from the norms of its parts."""
    return math.sqrt(sum(norm * norm for norm in norms))


def _rows(
    record: Mapping[tuple[str, ...], np.ndarray], recorded: IterationRecord, num_rows: int
) -> list[list[dict[str, Any]]]:
    """Selects the rows with the largest losses from each minibatch of an update.

    Returns one list per minibatch, with at most `num_rows` rows, largest loss first.
    """
    num_minibatches = next(iter(record.values())).shape[1]
    found: list[list[dict[str, Any]]] = [[] for _ in range(num_minibatches)]
    for mid in dict.fromkeys(path[1] for path in record if path[0] == ROW):
        leaves = {path[2:]: leaf for path, leaf in record.items() if path[:2] == (ROW, mid)}
        num_devices, _, number = leaves[("loss",)].shape
        for i, d, k in np.ndindex(num_minibatches, num_devices, number):
            of_row = {path: leaf[d, i, k] for path, leaf in leaves.items()}
            if of_row[("is_valid",)]:
                place = _place(mid, of_row, d, num_devices, recorded)
                columns = {
                    "/".join(path[1:]): value for path, value in of_row.items() if path[0] == COLUMN and path[1:]
                }
                known = [name for name in _OF_ROWS if name in columns]
                columns = {name: columns[name] for name in [*known, *(name for name in columns if name not in known)]}
                found[i].append({"module": mid, "loss": float(of_row[("loss",)]), **place, **columns})
    return [sorted(rows, key=lambda row: _order(row["loss"]))[:num_rows] for rows in found]


def _place(
    module_id: str, row: Mapping[tuple[str, ...], Any], device: int, num_devices: int, recorded: IterationRecord
) -> dict[str, int]:
    """Returns the origin of a row of the train batch as columns of an inspection's table, such as ``{"env": 3, "step":
    17}``.

    If the place of the row in the sampled block ``[T, B]`` is recorded, the origin is the environment ``env``, the
    ``step`` of the update's samples and, if the module has several agents, ``agent_slot``. Otherwise the origin is the
    index ``row`` in the batch, with ``device`` (if several), ``shard`` (if not 0) and ``sequence_step`` (in sequences).
    """
    order = recorded.columns
    if ("time",) not in row or order is None:
        part = {"device": device} if num_devices > 1 else {}
        part |= {"shard": shard} if (shard := int(row[("shard",)])) else {}
        sequence_step = {"sequence_step": int(row[("step",)])} if ("step",) in row else {}
        return {**part, "row": int(row[("item",)]), **sequence_step}
    share, slot, env = order.place(module_id, int(row[("column",)]))
    slots = {"agent_slot": slot} if order.num_slots.get(module_id, 1) > 1 else {}
    step = share * order.num_steps + int(row[("time",)])
    return {"env": device * order.num_envs + env, "step": step, **slots}


def _short(rows: Table) -> Table:
    """Selects the most important columns of a table of batch rows, such as module, minibatch and loss."""
    shown = [
        name
        for name in rows.columns
        if name in ("module", "minibatch", "loss", *_PLACE) or name.partition("/")[0] in _OF_ROWS
    ]
    if len({row["module"] for row in rows}) == 1:
        shown.remove("module")
    return rows.with_columns(shown)


def _order(loss: float) -> float:
    """Sorting key of losses, largest first; NaN comes before all numbers."""
    return -math.inf if math.isnan(loss) else -loss


def _even(frame: np.ndarray) -> np.ndarray:
    """Pads a frame to an even height and an even width, which video codecs need."""
    return np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")


def _figures(minibatches: Table) -> str:
    """Returns HTML with figures of the losses and gradient norms over the minibatches; "" if matplotlib is not
    installed.
    """
    try:
        from jaxrl_stack.runs.figures import draw
    except ImportError:
        return ""
    from jaxrl_stack.runs.curves import Band

    x = np.arange(len(minibatches), dtype=np.float64)
    figures = []
    for name in minibatches.columns:
        if name in _NUMBERS or not (name == "gradient_norm" or name.rpartition("/")[2] in _METRICS):
            continue
        y = np.array([row.get(name, math.nan) for row in minibatches], np.float64)
        if np.isfinite(y).any():
            band = Band(name, (), x, y, y, y)
            figure = draw([band], x_label="minibatch", y_label="", title=name, has_legend=False, width=4.6, height=2.7)
            figures.append(
                f'<figure class="small" role="img" aria-label="{html.escape(name)}">{figure.to_svg()}</figure>'
            )
    return f'<div class="grid">{"".join(figures)}</div>' if figures else ""
