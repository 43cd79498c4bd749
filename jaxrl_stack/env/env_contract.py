"""Contract of host environments (stepped in Python): their spaces and the return values of `reset` and `step`, checked
in every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space

from jaxrl_stack.env.observation_forms import FLAGS, NUMBERS, form_check, is_flag, is_number, misfit, shown
from jaxrl_stack.utils.integers import choices_of

GIVE_CHOICES = "Give the space as many choices as there are, or repair the environment."
_RESET, _STEP = ("obs", "info"), ("obs", "reward", "terminated", "truncated", "info")


def check_spaces(env: gym.Env | gym.vector.VectorEnv, name: str) -> None:
    """Checks that an environment defines `reset` and `step`, and has spaces that compiled code supports.

    Args:
        env: A `gymnasium.Env`, or a vector of them.
        name: Name in messages.

    Raises:
        TypeError: A space or a method is missing, or a space is none of the supported ones.
        ValueError: A space holds no numbers, or its bounds make no sense.
    """
    # Processes of asynchronous vectors, which import this module, have no use for JAX.
    from jaxrl_stack.utils.spaces import check_space

    prefix = "single_" if isinstance(env, gym.vector.VectorEnv) else ""
    for kind in ("observation_space", "action_space"):
        space = getattr(env, prefix + kind, None)
        if space is None:
            raise TypeError(
                f"environment({name!r}): {type(env).__name__} has no {prefix}{kind}. Set self.{prefix}{kind} to a "
                "gymnasium space in its __init__."
            )
        check_space(space, f"environment({name!r}): its {kind}")
    for base in (gym.Env, gym.vector.VectorEnv):
        # They are no abstract methods there.
        missing = [method for method in ("reset", "step") if getattr(type(env), method, None) is getattr(base, method)]
        if missing:
            raise TypeError(
                f"environment({name!r}): {type(env).__name__} does not define {', '.join(missing)}. "
                f"Add {' and '.join(missing)} to the class."
            )


class EnvContract:
    """Checks the return values of an env runner's single (not vectorized) environments. Errors contain the
    environment's name, the runner, the index of the environment, and the step.

    Args:
        space: Space of an observation.
        name: Name of the environment in messages.
        worker_index: Index of the runner.
        copies: Indices of the environments.
    """

    def __init__(self, space: gym.Space, name: str, worker_index: int, copies: Any):
        self._space, self._name, self._worker_index = space, name, worker_index
        self._fits = form_check(space)
        # Choices that do not exist are found at once where they are the first; later ones once per recording.
        self._first_resets, self._first_steps = set(copies), set(copies)
        self._num_steps, self._steps_before = 0, dict.fromkeys(copies, 0)

    def begin_step(self) -> None:
        """Counts one step of all environments, for the step number in error messages."""
        self._num_steps += 1

    def check_reset(self, outcome: Any, index: int) -> None:
        """Checks the return value of an environment's ``reset``.

        Args:
            outcome: Should be ``(obs, info)``.
            index: Index of the environment.

        Raises:
            ValueError: Another number of values, an observation that does not fit the space, or an info that is no
                dict.
        """
        is_pair = isinstance(outcome, tuple) and len(outcome) == 2
        if not (is_pair and self._fits(outcome[0]) and isinstance(outcome[1], Mapping)):
            self._refuse(outcome, _RESET, index, "reset")
        self._steps_before[index] = self._num_steps
        if index in self._first_resets:
            self._check_choices(outcome[0], index, "reset")
            self._first_resets.discard(index)

    def check_step(self, outcome: Any, index: int) -> None:
        """Checks the return value of an environment's ``step``.

        Args:
            outcome: Should be ``(obs, reward, terminated, truncated, info)``.
            index: Index of the environment.

        Raises:
            ValueError: As `check_reset`; or a reward that is no number, or flags that are no bools.
        """
        if outcome.__class__ is tuple and len(outcome) == 5:
            obs, reward, terminated, truncated, info = outcome
            if (
                reward.__class__ in NUMBERS
                and terminated.__class__ in FLAGS
                and truncated.__class__ in FLAGS
                and info.__class__ is dict
                and self._fits(obs)
                and not self._first_steps
            ):
                return
        self._examine_step(outcome, index)

    def _examine_step(self, outcome: Any, index: int) -> None:
        """Checks the return value of an environment's `step` in detail.

        `check_step` calls this method if its faster check does not accept the value, and for all steps until the first
        step of every environment was checked.
        """
        if isinstance(outcome, tuple) and len(outcome) == 5:
            obs, reward, terminated, truncated, info = outcome
            signals = is_number(reward) and is_flag(terminated) and is_flag(truncated) and isinstance(info, Mapping)
            if signals and self._fits(obs):
                if index in self._first_steps:
                    self._check_choices(obs, index, self._step(index))
                    self._first_steps.discard(index)
                return
        self._refuse(outcome, _STEP, index, self._step(index))

    def _step(self, index: int) -> str:
        """Returns the text "step n" for error messages, where n counts the steps of an environment since its last
        reset.
        """
        return f"step {self._num_steps - self._steps_before[index]}"

    def _check_choices(self, obs: Any, index: int, call: str) -> None:
        found = wrong_choice(self._space, obs, f"the observation of {self._call_label(call, index)}")
        if found is not None:
            raise ValueError(f"environment({self._name!r}): {found}")

    def _call_label(self, call: str, index: int) -> str:
        return f"{call} of copy {index} in EnvRunner {self._worker_index}"

    def _refuse(self, outcome: Any, names: tuple[str, ...], index: int, call: str) -> NoReturn:
        place = self._call_label(call, index)
        problem = misfit_of_parts(outcome, names, place)
        if problem is None:
            problem = misfit(self._space, outcome[0], f"the observation of {place}")
        if problem is None:
            problem = misfit_of_signals(dict(zip(names, outcome, strict=True)), place)
        raise ValueError(f"environment({self._name!r}): {problem}")


class VectorContract:
    """Checks the return values of a vector environment that steps all its sub-environments in one call. Errors name
    environment, runner and step.

    Args:
        space: Space of an observation of one copy.
        num_envs: Number of copies, ``B``.
        name, worker_index: See `EnvContract`.
    """

    def __init__(self, space: gym.Space, num_envs: int, name: str, worker_index: int):
        self._space, self._of_one, self._num_envs = batch_space(space, num_envs), space, num_envs
        self._name, self._worker_index = name, worker_index
        self._fits, self._fits_one = form_check(self._space), form_check(space)
        self._num_steps = 0

    def check_reset(self, outcome: Any) -> None:
        """Checks the return value of a vector environment's ``reset``.

        Args:
            outcome: Should be ``(obs, infos)``, the observations ``[B, ...]``.

        Raises:
            ValueError: `outcome` has another form.
        """
        self._num_steps = 0
        if not (isinstance(outcome, tuple) and len(outcome) == 2 and self._fits(outcome[0])):
            self._refuse(outcome, ("obs", "infos"), "reset")
        if not isinstance(outcome[1], dict):
            self._refuse(outcome, ("obs", "infos"), "reset")

    def check_step(self, outcome: Any) -> None:
        """Checks the return value of a vector environment's ``step``.

        Args:
            outcome: Should be ``(obs, rewards, terminateds, truncateds, infos)``, all but infos ``[B, ...]``.

        Raises:
            ValueError: `outcome` has another form.
        """
        self._num_steps += 1
        if isinstance(outcome, tuple) and len(outcome) == 5 and self._fits(outcome[0]):
            _, rewards, terminateds, truncateds, infos = outcome
            if (
                self._is_column(rewards, "biuf")
                and self._is_column(terminateds, "biu")
                and self._is_column(truncateds, "biu")
                and isinstance(infos, dict)
            ):
                return
        self._refuse(
            outcome, ("obs", "rewards", "terminateds", "truncateds", "infos"), f"step {self._num_steps} after reset"
        )

    def check_final_obs(self, given: Any, ended: np.ndarray) -> None:
        """Checks the final observations of ended episodes, which a vector environment returns in its infos.

        Args:
            given: An array of objects ``[B]``, or a batch ``[B, ...]``.
            ended: bool ``[B]``, the copies whose episode has ended.

        Raises:
            ValueError: A final observation does not fit the space.
        """
        problem, place = None, f"step {self._num_steps} after reset in EnvRunner {self._worker_index}"
        if isinstance(given, np.ndarray) and given.dtype == object:
            for i in np.flatnonzero(ended).tolist():
                if problem is None and not self._fits_one(given[i]):
                    problem = misfit(self._of_one, given[i], f"infos['final_obs'][{i}] of {place}")
        elif not self._fits(given):
            problem = misfit(self._space, given, f"infos['final_obs'] of {place}")
        if problem is not None:
            raise ValueError(f"environment({self._name!r}): {problem}")

    def _is_column(self, values: Any, kinds: str) -> bool:
        """Whether `values` is a valid array of rewards or flags from a vector step.

        A valid array has one number per sub-environment, and a ``dtype.kind`` in `kinds`. If `kinds` lacks "f" (float),
        the values are flags, which must be bool, 0 or 1.
        """
        try:
            array = np.asarray(values)
        except ValueError:  # lists of several lengths
            return False
        if array.shape != (self._num_envs,) or array.dtype.kind not in kinds:
            return False
        return "f" in kinds or array.dtype.kind == "b" or bool(((array == 0) | (array == 1)).all())

    def _refuse(self, outcome: Any, names: tuple[str, ...], call: str) -> NoReturn:
        place = f"{call} in EnvRunner {self._worker_index}"
        problem = misfit_of_parts(outcome, names, place)
        if problem is None:
            problem = misfit(self._space, outcome[0], f"the batch of observations of {place}")
        if problem is None:
            columns = zip(names[1:], outcome[1:], strict=True)
            problem = next(filter(None, (self._misfit_of(name, value, place) for name, value in columns)), None)
        raise ValueError(f"environment({self._name!r}): {problem}")

    def _misfit_of(self, name: str, value: Any, place: str) -> str | None:
        if name == "infos":
            return None if isinstance(value, dict) else f"{place} returned infos={shown(value)}. Return a dict."
        kinds, what = ("biuf", "number") if name == "rewards" else ("biu", "bool")
        if self._is_column(value, kinds):
            return None
        given = f"{name}={shown(value)}"
        if isinstance(value, np.ndarray) and (value.shape != (self._num_envs,) or value.dtype.kind not in kinds):
            given = f"{name} of shape {value.shape} and dtype {value.dtype}"
        return f"{place} returned {given}. Return one {what} for each copy: an array of shape ({self._num_envs},)."


def misfit_of_parts(outcome: Any, names: tuple[str, ...], place: str) -> str | None:
    """Returns an error message if the return value of an environment's method is not a tuple with one value for each
    entry of `names`; else None.
    """
    if isinstance(outcome, tuple) and len(outcome) == len(names):
        return None
    given = f"{len(outcome)} values" if isinstance(outcome, tuple) else f"a {type(outcome).__name__}"
    return (
        f"{place} returned {given}. Return a tuple of the {len(names)} values ({', '.join(names)}), as gymnasium's "
        "environments do."
    )


def misfit_of_signals(signals: dict[str, Any], place: str) -> str | None:
    """Returns an error message if a value in `signals`, a dict of reward, terminated, truncated and info, has a wrong
    type; else None.
    """
    for name, value in signals.items():
        if name == "reward" and not is_number(value):
            return f"{place} returned the reward {shown(value)}. Return one number, no array: float(reward)."
        if name in ("terminated", "truncated") and not is_flag(value):
            return f"{place} returned {name}={shown(value)}. Return True or False: bool({name})."
        if name == "info" and not isinstance(value, Mapping):
            return f"{place} returned the info {shown(value)}. Return a dict, {{}} if empty."
    return None


def wrong_choice(space: gym.Space, obs: Any, name: str) -> str | None:
    """Returns an error sentence if an observation contains a choice that a discrete space does not have; else None.

    Discrete spaces are Discrete, MultiDiscrete and MultiBinary. The one-hot encoding of such a choice would be all
    zeros.

    Args:
        space: Space of the observation.
        obs: An observation that has the form of its space.
        name: Name in messages.
    """
    match space:
        case Dict():
            parts: Any = space.items()
        case Tuple():
            parts = enumerate(space)
        case Discrete() | MultiDiscrete() | MultiBinary():
            value, (first, last) = np.asarray(obs), choices_of(space)
            if (value < first).any() or (value > last).any():
                return f"{name} is {shown(obs)}, outside of {space}. {GIVE_CHOICES}"
            return None
        case _:
            return None
    return next(filter(None, (wrong_choice(part, obs[key], f"{name}[{key!r}]") for key, part in parts)), None)


def is_inside(space: gym.Space, obs: Any) -> bool:
    """Whether an observation lies within the bounds and choices of its space. The observation must have the structure
    of the space.
    """
    match space:
        case Dict():
            return all(is_inside(part, obs[key]) for key, part in space.items())
        case Tuple():
            return all(is_inside(part, obs[index]) for index, part in enumerate(space))
        case Box():
            value = np.asarray(obs)
            return bool((value >= space.low).all() and (value <= space.high).all())
        case _:
            return wrong_choice(space, obs, "") is None
