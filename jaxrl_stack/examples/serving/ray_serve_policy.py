"""Trained policy as a deployment of Ray Serve.

``pip install 'jaxrl-stack[serve]'``, then ``serve.run(PolicyDeployment.bind("checkpoint"))``.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from jaxrl_stack.examples.serving.json_policy import JsonPolicy
from jaxrl_stack.policy import Policy


@serve.deployment
class PolicyDeployment:
    """Ray Serve deployment that answers HTTP requests, and calls of ``handle.act.remote(request)``, with actions.

    Each replica keeps the states of its episodes. If the policy has a memory (LSTM, frame stack, previous actions), use
    one replica, or one deployment per group of clients: Ray Serve sends each request to any replica.

    Args:
        checkpoint: Folder of an algorithm's or a policy's checkpoint, which each replica loads.
        max_episodes: See `JsonPolicy`.
    """

    def __init__(self, checkpoint: str, max_episodes: int = 10_000):
        self.json_policy = JsonPolicy(Policy.from_checkpoint(checkpoint), max_episodes)

    def act(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the action for one observation, see `JsonPolicy.act`."""
        return self.json_policy.act(request)

    async def __call__(self, http_request: Request) -> JSONResponse:
        """Answers an HTTP POST request with JSON; an invalid request gets status 400 and ``{"error": text}``."""
        try:
            return JSONResponse(self.act(json.loads(await http_request.body())))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
