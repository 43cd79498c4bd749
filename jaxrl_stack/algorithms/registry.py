"""Registry of algorithms: classes, configs and tuned settings by name."""

from __future__ import annotations

import copy
import difflib
import importlib
from typing import TYPE_CHECKING, Any

from jaxrl_stack.compat.unsupported_names import nearest_algorithm

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.tuned_records import Evidence

# Name → (module, algorithm class, config class). Imported when asked for: no algorithm pays for the others.
ALGORITHMS: dict[str, tuple[str, str, str]] = {
    "APPO": ("jaxrl_stack.algorithms.appo.appo", "APPO", "APPOConfig"),
    "BC": ("jaxrl_stack.algorithms.bc.bc", "BC", "BCConfig"),
    "CQL": ("jaxrl_stack.algorithms.cql.cql", "CQL", "CQLConfig"),
    "DQN": ("jaxrl_stack.algorithms.dqn.dqn", "DQN", "DQNConfig"),
    "DreamerV3": ("jaxrl_stack.algorithms.dreamerv3.dreamerv3", "DreamerV3", "DreamerV3Config"),
    "IMPALA": ("jaxrl_stack.algorithms.impala.impala", "IMPALA", "IMPALAConfig"),
    "IQL": ("jaxrl_stack.algorithms.iql.iql", "IQL", "IQLConfig"),
    "MARWIL": ("jaxrl_stack.algorithms.marwil.marwil", "MARWIL", "MARWILConfig"),
    "PPO": ("jaxrl_stack.algorithms.ppo.ppo", "PPO", "PPOConfig"),
    "PQN": ("jaxrl_stack.algorithms.pqn.pqn", "PQN", "PQNConfig"),
    "SAC": ("jaxrl_stack.algorithms.sac.sac", "SAC", "SACConfig"),
    "TD3": ("jaxrl_stack.algorithms.td3.td3", "TD3", "TD3Config"),
    "TQC": ("jaxrl_stack.algorithms.tqc.tqc", "TQC", "TQCConfig"),
}


def get_algorithm_class(name: str) -> type[Algorithm]:
    """The Algorithm class with this name, such as "PPO".

    Raises:
        ValueError: If there is none; names the known algorithms.
    """
    module, algorithm, _ = _entry(name)
    return getattr(importlib.import_module(module), algorithm)


def get_algorithm_config_class(name: str) -> type[AlgorithmConfig]:
    """The config class of the algorithm with this name.

    Raises:
        ValueError: If there is none; names the known algorithms.
    """
    module, _, config = _entry(name)
    return getattr(importlib.import_module(module), config)


def tuned_settings(name: str) -> dict[str, dict[str, Any]]:
    """Tuned settings of an algorithm by environment, from ``tuned.py`` in its folder.

    Returns:
        ``{environment: settings for config.update_from_dict}``; a copy.
    """
    return copy.deepcopy(_tuned_module(name).TUNED)


def tuned_evidence(name: str) -> dict[str, Evidence]:
    """Evidence that an algorithm learns with its tuned settings, ``{environment: evidence}``: measurements with this
    package, or a publication.
    """
    return {env: record.evidence for env, record in _tuned_module(name).RECORDS.items()}


def _tuned_module(name: str) -> Any:
    return importlib.import_module(f"{_entry(name)[0].rpartition('.')[0]}.tuned")


def _entry(name: str) -> tuple[str, str, str]:
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    available = f"Available: {', '.join(sorted(ALGORITHMS))}."
    sentence = nearest_algorithm(str(name))
    if sentence is not None:
        raise ValueError(f"{sentence} {available}")
    by_lower = {known.lower(): known for known in ALGORITHMS}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    hint = f" Did you mean {by_lower[close[0]]!r}?" if close else ""
    if "-" in str(name) or "/" in str(name):
        hint = f" It looks like an environment: config.environment({name!r})."
    raise ValueError(f"There is no algorithm {name!r}.{hint} {available}")
