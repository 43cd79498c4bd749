"""Servers of policies: the state of each episode is kept, and a wrong request is answered with the reason."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.jax_env import AutoResetJaxEnv
from jaxrl_stack.examples.serving.http_server import main, make_server
from jaxrl_stack.examples.serving.json_policy import JsonPolicy
from jaxrl_stack.policy import Policy


class Parts(AutoResetJaxEnv):
    """Observations and actions that are Dicts."""

    observation_space = gym.spaces.Dict(
        {"place": gym.spaces.Box(-1.0, 1.0, (2,), np.float32), "kind": gym.spaces.Discrete(3)}
    )
    action_space = gym.spaces.Dict(
        {"turn": gym.spaces.Box(-1.0, 1.0, (1,), np.float32), "jump": gym.spaces.Discrete(2)}
    )

    def __init__(self, config):
        pass

    def reset_env(self, key, params):
        return {"place": jax.numpy.zeros(2), "kind": jax.numpy.int32(0)}, jax.numpy.int32(0)

    def step_env(self, key, state, action, params):
        return *self.reset_env(key, params), 0.0, False, state > 3, {}


def policy_of(env, **model_config) -> Policy:
    config = (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=16, minibatch_size=16, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4], **model_config})
    )
    algo = config.build_algo()
    try:
        return algo.get_policy()
    finally:
        algo.stop()


@pytest.fixture(scope="module")
def recurrent() -> Policy:
    return policy_of("gymnax/CartPole-v1", use_lstm=True, lstm_cell_size=4, max_seq_len=4)


@pytest.fixture(scope="module")
def url(recurrent):
    server = make_server(recurrent, port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def post(url: str, body: bytes) -> tuple[int, dict]:
    """Status and content of an answer."""
    try:
        with urllib.request.urlopen(url, body, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def actions_of(policy: Policy, observations: list[list[float]]) -> list[int]:
    """Actions of one episode by calls of the policy."""
    state, actions = None, []
    for observation in observations:
        action, state, _ = policy.compute_single_action(observation, state)
        actions.append(int(action))
    return actions


def test_http_requests_of_interleaved_episodes_act_as_the_policy_does(recurrent, url):
    draws = np.random.default_rng(0).normal(size=(2, 12, 4)).tolist()
    answered: dict[str, list] = {"a": [], "b": []}
    for step in range(12):
        for name, own in zip(answered, draws, strict=True):
            status, answer = post(url, json.dumps({"observation": own[step], "episode": name}).encode())
            assert status == 200 and answer["step"] == step
            answered[name].append(answer["action"])
    assert list(answered.values()) == [actions_of(recurrent, own) for own in draws]
    assert post(url, json.dumps({"observation": draws[0][0]}).encode())[1] == {"action": answered["a"][0], "step": 0}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no JSON", "Expecting value"),
        (b"\xff", "codec"),
        (b'{"obs": [0, 0, 0, 0]}', '"observation": numbers'),
        (b"[0, 0, 0, 0]", '"observation": numbers'),
        (b'{"observation": [0, 0, 0]}', "has shape (3,)"),
        (b'{"observation": [0, 0, NaN, 0]}', "is nan"),
        (b'{"observation": [0, 0, 0, 0], "episode": 3}', '"episode": "3"'),
    ],
)
def test_a_wrong_http_request_is_answered_with_the_reason(url, body, reason):
    status, answer = post(url, body)
    assert status == 400 and reason in answer["error"]
    assert post(url, b'{"observation": [0, 0, 0, 0]}')[0] == 200


def test_the_server_of_a_checkpoint_says_where_it_listens(recurrent, tmp_path, capsys, monkeypatch):
    path = recurrent.save_to_path(tmp_path / "checkpoint")

    def interrupted(server):
        raise KeyboardInterrupt

    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", interrupted)
    main([str(path), "--port", "0"])
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


def test_parts_of_observations_and_actions_are_json_objects():
    served = JsonPolicy(policy_of(Parts))
    answer = served.act({"observation": {"place": [0.5, -0.5], "kind": 2}})
    assert json.loads(json.dumps(answer)) == answer
    assert answer["action"]["jump"] in (0, 1) and len(answer["action"]["turn"]) == 1


def test_the_longest_unused_episode_is_dropped_and_begins_again(recurrent):
    served = JsonPolicy(recurrent, max_episodes=2)
    steps = [served.act({"observation": [0.0] * 4, "episode": name})["step"] for name in "abacab"]
    assert steps == [0, 0, 1, 0, 2, 0]  # c takes the place of b


def test_ray_serve_answers_handles_and_http_requests(recurrent, tmp_path):
    serve = pytest.importorskip("ray.serve", reason="Ray Serve: pip install 'jaxrl-stack[serve]'", exc_type=ImportError)
    from starlette.requests import Request

    from jaxrl_stack.examples.serving.ray_serve_policy import PolicyDeployment

    path = str(recurrent.save_to_path(tmp_path / "checkpoint"))
    # The replica in this process; a cluster takes ten seconds to start.
    handle = serve.run(PolicyDeployment.bind(path), _local_testing_mode=True)
    observations = np.random.default_rng(1).normal(size=(6, 4)).tolist()
    answers = [handle.act.remote({"observation": own, "episode": "a"}).result() for own in observations]
    assert [answer["action"] for answer in answers] == actions_of(recurrent, observations)

    async def body_of(content: bytes):
        return {"type": "http.request", "body": content}

    for content, status in ((b'{"observation": [0, 0, 0, 0]}', 200), (b"[]", 400)):
        request = Request({"type": "http", "method": "POST"}, lambda content=content: body_of(content))
        response = asyncio.run(PolicyDeployment.func_or_class(path)(request))
        assert response.status_code == status and set(json.loads(response.body)) & {"action", "error"}
