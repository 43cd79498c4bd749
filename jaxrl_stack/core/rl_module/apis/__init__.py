"""Optional interfaces of RLModules in addition to forward passes; some algorithms require them."""

from __future__ import annotations

from jaxrl_stack.core.rl_module.apis.inference_only_api import InferenceOnlyAPI
from jaxrl_stack.core.rl_module.apis.q_net_api import QNetAPI
from jaxrl_stack.core.rl_module.apis.self_supervised_loss_api import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.apis.target_network_api import TARGET_NETWORK_ACTION_DIST_INPUTS, TargetNetworkAPI
from jaxrl_stack.core.rl_module.apis.value_function_api import ValueFunctionAPI

__all__ = [
    "TARGET_NETWORK_ACTION_DIST_INPUTS",
    "InferenceOnlyAPI",
    "QNetAPI",
    "SelfSupervisedLossAPI",
    "TargetNetworkAPI",
    "ValueFunctionAPI",
]
