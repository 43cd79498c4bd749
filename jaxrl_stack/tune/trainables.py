"""Algorithms as Trainables of Ray Tune."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_class

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

_SUFFIX = "Trainable"


class AlgorithmTrainable:
    """Methods that Ray Tune calls for a trial of an algorithm. The classes that `trainable` returns inherit from this
    class and from ``ray.tune.Trainable``.

    Attributes:
        algorithm: The Algorithm that this trial trains.
    """

    _algorithm: type[Algorithm] | str

    algorithm: Algorithm
    logdir: str

    @classmethod
    def algorithm_class(cls) -> type[Algorithm]:
        """The Algorithm class that this trial trains."""
        return get_algorithm_class(cls._algorithm) if isinstance(cls._algorithm, str) else cls._algorithm

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """The default config of the algorithm: ``get_trainable_cls("PPO").get_default_config()``."""
        return cls.algorithm_class().get_default_config()

    @classmethod
    def as_config(cls, config: Mapping[str, Any]) -> AlgorithmConfig:
        """Converts the settings of a trial to a frozen config, based on the algorithm's default config.

        Args:
            config: Result of `AlgorithmConfig.to_dict`, or any part of it, without search spaces.

        Raises:
            ValueError: If a name is unknown or a value is invalid.
        """
        from jaxrl_stack.algorithms.setting_values import same

        new = cls.get_default_config().copy(copy_frozen=False)
        defaults = new.to_dict()
        # What is at its default was not set.
        new.update_from_dict({k: v for k, v in config.items() if k not in defaults or not same(defaults[k], v)})
        new.validate()
        new.freeze()
        return new

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """Resources of a trial: a bundle for its main process, and one for every actor that it starts.

        Raises:
            ValueError: If settings are invalid, or the cluster is too small for the trial.
        """
        from jaxrl_stack.tune.registry import share_env

        settings = cls.as_config(config)
        # Called in the driver's process, which knows the environments; the trial's does not.
        for each in (settings, settings.get_evaluation_config_object()):
            share_env(each.env if each is not None else None)
        return cls.algorithm_class().default_resource_request(settings)

    def setup(self, config: dict[str, Any]) -> None:
        """Builds the algorithm of this trial."""
        self._settings = config
        self._build(self.as_config(config))

    def _build(self, config: AlgorithmConfig) -> None:
        from jaxrl_stack.utils.actor_setup import set_up_actor
        from jaxrl_stack.utils.resources import learner_cpus, role_resources

        resources = role_resources(config, "main")
        set_up_actor(
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            num_cpu_devices=1 if config.num_learners else max(1, int(learner_cpus(config))),
        )
        self.algorithm = self.algorithm_class()(config)

    def step(self) -> dict[str, Any]:
        """Runs one iteration, and returns the result of ``Algorithm.train``."""
        return self.algorithm.train()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes a checkpoint for ``Algorithm.from_checkpoint``."""
        self.algorithm.save_checkpoint(checkpoint_dir)

    def load_checkpoint(self, checkpoint: str) -> None:
        """Restores the algorithm of this trial from a checkpoint that `save_checkpoint` wrote."""
        self.algorithm.load_checkpoint(checkpoint)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Prepares this process for another trial with the settings `new_config` (``reuse_actors=True`` of Tune).

        If only traced settings differ, the compiled programs are kept; otherwise the algorithm is built again.

        Returns:
            True, because Tune stops a trial for False.
        """
        # Every message from Tune brings new copies of lambdas and environments; programs know the first ones.
        self._settings = {k: _known(v, self._settings.get(k)) for k, v in new_config.items()}
        config = self.as_config(self._settings)
        if not self.algorithm.reset(config):
            self.algorithm.stop()
            self._build(config)
        return True

    def cleanup(self) -> None:
        """Releases the devices and actors of the algorithm."""
        self.algorithm.stop()


def _known(value: Any, known: Any) -> Any:
    """Returns the earlier value `known` instead of `value` if the two are unequal but have the same pickle.

    An example is a new copy of a lambda. Programs compiled for `known` can then be reused. Otherwise, returns `value`.
    """
    from jaxrl_stack.algorithms.setting_values import same

    if same(value, known):
        return value
    dumps = importlib.import_module("ray.cloudpickle").dumps
    return known if dumps(value) == dumps(known) else value


def trainable(algorithm: type[Algorithm] | str) -> type[AlgorithmTrainable]:
    """Returns the Ray Tune Trainable of an algorithm: ``tune.Tuner(trainable(PPO), param_space=config)``.

    It imports ``ray.tune``.

    Args:
        algorithm: An Algorithm class, also your own, or the name of an algorithm, such as "PPO".

    Returns:
        A subclass of ``ray.tune.Trainable``.

    Raises:
        ValueError: If there is no algorithm of that name.
        TypeError: If it is neither a name nor an Algorithm class.
    """
    if not isinstance(algorithm, str) and not is_algorithm_class(algorithm):
        raise TypeError(
            f"trainable({algorithm!r}) takes an Algorithm class or the name of one: trainable(PPO) or trainable('PPO')."
        )
    name = algorithm if isinstance(algorithm, str) else algorithm.__name__
    is_own = name in ALGORITHMS and (isinstance(algorithm, str) or algorithm.__module__ == ALGORITHMS[name][0])
    if is_own:
        # One class per name, which other processes find by its path.
        return getattr(sys.modules[__name__], name + _SUFFIX)
    return _make(name, get_algorithm_class(algorithm) if isinstance(algorithm, str) else algorithm)


def is_algorithm_class(value: Any) -> bool:
    """Whether `value` is `Algorithm` or a subclass. Does not import the module of `Algorithm`; if this module is not
    imported yet, returns False.
    """
    module = sys.modules.get("jaxrl_stack.algorithms.algorithm")
    return module is not None and isinstance(value, type) and issubclass(value, module.Algorithm)


def _make(name: str, algorithm: type[Algorithm] | str) -> type[AlgorithmTrainable]:
    Trainable = importlib.import_module("ray.tune").Trainable
    # Tune calls trials and folders by `_name`.
    members = {"_name": name, "_algorithm": algorithm, "__module__": __name__, "__doc__": f"{name}, for Ray Tune."}
    return type(name + _SUFFIX, (AlgorithmTrainable, Trainable), members)


def __getattr__(name: str) -> Any:
    # Made when asked for, since their base class is Ray's; pickles name them by this module.
    algorithm = name.removesuffix(_SUFFIX)
    if name.endswith(_SUFFIX) and algorithm in ALGORITHMS:
        made = _make(algorithm, algorithm)
        globals()[name] = made
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
