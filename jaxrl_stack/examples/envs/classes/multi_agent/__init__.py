"""Environments of several agents: they can be imported, and are not here yet (see `make_multi_agent`)."""

from jaxrl_stack.env.multi_agent_env import make_multi_agent

MultiAgentCartPole = make_multi_agent("CartPole-v1")
MultiAgentCartPoleWithDictObservationSpace = make_multi_agent("CartPole-v1")
MultiAgentMountainCar = make_multi_agent("MountainCarContinuous-v0")
MultiAgentNestedSpaceRepeatAfterMeEnv = make_multi_agent("NestedSpaceRepeatAfterMeEnv")
MultiAgentPendulum = make_multi_agent("Pendulum-v1")
MultiAgentStatelessCartPole = make_multi_agent("CartPole-v1")

__all__ = [
    "MultiAgentCartPole",
    "MultiAgentCartPoleWithDictObservationSpace",
    "MultiAgentMountainCar",
    "MultiAgentNestedSpaceRepeatAfterMeEnv",
    "MultiAgentPendulum",
    "MultiAgentStatelessCartPole",
    "make_multi_agent",
]
