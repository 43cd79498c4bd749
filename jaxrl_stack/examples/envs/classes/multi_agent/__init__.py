"""Multi-agent environments under RLlib's import paths."""

from jaxrl_stack.env.multi_agent_env import make_multi_agent
from jaxrl_stack.examples.envs.classes.cartpole_with_dict_observation_space import CartPoleWithDictObservationSpace
from jaxrl_stack.examples.envs.classes.multi_agent.guess_the_number_game import GuessTheNumberGame
from jaxrl_stack.examples.envs.classes.multi_agent.two_step_game import TwoStepGame, TwoStepGameWithGroupedAgents
from jaxrl_stack.examples.envs.classes.nested_space_repeat_after_me_env import NestedSpaceRepeatAfterMeEnv
from jaxrl_stack.examples.envs.classes.stateless_cartpole import StatelessCartPole


class MultiAgentCartPole(make_multi_agent("CartPole-v1")):
    """CartPole for several agents with one pole each. Settings: `num_agents` (1), and the settings of gymnasium's
    CartPole-v1.
    """


class MultiAgentMountainCar(make_multi_agent("MountainCarContinuous-v0")):
    """MountainCarContinuous for several agents with one car each. Settings: `num_agents` (1)."""


class MultiAgentPendulum(make_multi_agent("Pendulum-v1")):
    """Pendulum for several agents with one pendulum each. Settings: `num_agents` (1), `g` (10.0)."""


class MultiAgentCartPoleWithDictObservationSpace(make_multi_agent(CartPoleWithDictObservationSpace)):
    """CartPole for several agents with one pole each and Dict observations. Settings: `num_agents` (1)."""


class MultiAgentNestedSpaceRepeatAfterMeEnv(make_multi_agent(NestedSpaceRepeatAfterMeEnv)):
    """`NestedSpaceRepeatAfterMeEnv` for several agents; each agent repeats its own newest observation. Settings:
    `num_agents` (1), and the settings of `NestedSpaceRepeatAfterMeEnv`."""


class MultiAgentStatelessCartPole(make_multi_agent(StatelessCartPole)):
    """CartPole for several agents with one pole each, without velocities in observations. Settings:
    `num_agents` (1).
    """


__all__ = [
    "GuessTheNumberGame",
    "MultiAgentCartPole",
    "MultiAgentCartPoleWithDictObservationSpace",
    "MultiAgentMountainCar",
    "MultiAgentNestedSpaceRepeatAfterMeEnv",
    "MultiAgentPendulum",
    "MultiAgentStatelessCartPole",
    "TwoStepGame",
    "TwoStepGameWithGroupedAgents",
]
