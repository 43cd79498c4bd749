"""Promises of `FaultTolerantActorManager` that Ray's actors and `tests.fake_actors.FakeActors` keep alike.

The pool has two actors, with the ids 1 and 2, whose class has `FaultAwareApply`, ``add`` (to ``count``, 0 and 10) and
``fail``.
"""

from __future__ import annotations

import pytest


def values(results):
    return [call.get() for call in results]


def functions_methods_and_lists_reach_their_actors(manager, actors, get):
    """The promise, of the pool's `actors`; `get` returns the values of references."""
    assert manager.actors() == {1: actors[0], 2: actors[1]} and manager.healthy_actor_ids() == [1, 2]
    assert values(manager.foreach_actor(lambda actor: actor.count)) == [0, 10]
    assert values(manager.foreach_actor("add", kwargs={"n": 0})) == [0, 10]
    several = manager.foreach_actor(["ping", lambda actor, k: k], kwargs=[{}, {"k": 3}])
    assert [(call.actor_id, call.get()) for call in several] == [(1, "pong"), (2, 3)]
    assert values(manager.foreach_actor("add", kwargs={"n": 0}, remote_actor_ids=[2])) == [10]
    # An id as often as it is named, in that order.
    assert values(manager.foreach_actor("add", kwargs={"n": 0}, remote_actor_ids=[2, 1, 2])) == [10, 0, 10]
    refs = manager.foreach_actor("add", kwargs={"n": 0}, return_obj_refs=True)
    assert get(values(refs)) == [0, 10]
    with pytest.raises(ValueError, match=r"func has length 1, but there are 2 actors \(\[1, 2\]\)"):
        manager.foreach_actor(["ping"])
    with pytest.raises(ValueError, match=r"no actor with the id 7. Choose from \[1, 2\]"):
        manager.foreach_actor("ping", remote_actor_ids=[7])


def an_exception_is_a_result_and_raises_with_the_actors_traceback(manager):
    """The promise."""
    results = manager.foreach_actor(["ping", "fail"])
    assert [call.ok for call in results] == [True, False]
    assert [call.get() for call in results.ignore_errors()] == ["pong"]
    # The actor lives: only its code failed.
    assert manager.healthy_actor_ids() == [1, 2] and len(list(results.ignore_ray_errors())) == 2
    with pytest.raises(KeyError, match="told to") as caught:
        manager.handle_remote_call_result_errors(results, ignore_ray_errors=True)
    assert "in fail" in str(caught.value) and caught.value.__notes__ == ["In actor 2."]
