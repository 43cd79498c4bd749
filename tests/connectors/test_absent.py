from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "name", "reason"),
    [
        ("env_to_module", "AgentToModuleMapping", "keyed by module id"),
        ("common.agent_to_module_mapping", "AgentToModuleMapping", "keyed by module id"),
        ("common.module_to_agent_unmapping", "ModuleToAgentUnmapping", "hands actions"),
        ("env_to_module.write_observations_to_episodes", "WriteObservationsToEpisodes", "record the module's inputs"),
        ("learner.add_infos_from_episodes_to_train_batch", "AddInfosFromEpisodesToTrainBatch", "Python objects"),
        ("env_to_module", "WriteObservationsToEpisodes", "record the module's inputs"),
        ("module_to_env", "ModuleToAgentUnmapping", "hands actions"),
        ("learner", "AddInfosFromEpisodesToTrainBatch", "Python objects"),
    ],
)
def test_connectors_without_a_job_say_why(module, name, reason):
    package = importlib.import_module(f"jaxrl_stack.connectors.{module}")
    with pytest.raises(ImportError, match=f"{name} of RLlib has no counterpart.*{reason}"):
        getattr(package, name)
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchConnector'"):
        _ = package.NoSuchConnector
