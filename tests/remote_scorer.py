"""Scorers: a toy kind of actor that is restarted when it dies, and loses the work that it had."""

from collections.abc import Sequence

from jaxrl_stack.utils.actor_backend import RAY, Backend, start_actors
from jaxrl_stack.utils.actor_manager import FaultAwareApply, FaultTolerantActorManager
from jaxrl_stack.utils.actor_recovery import ActorRecovery
from jaxrl_stack.utils.loss_policy import LossPolicy

POLICY = LossPolicy("scorer", max_restarts=1)


class Scorer(FaultAwareApply):
    def score(self, text: str) -> tuple[str, int]:
        return text, len(text)


class Scorers:
    """Actors that score texts; those that a lost actor had are scored by another one."""

    def __init__(self, number: int, backend: Backend = RAY):
        restarts = POLICY.restarts_of_each
        handles = start_actors(Scorer, [{}] * number, options={"num_cpus": 1}, max_restarts=restarts, backend=backend)
        self._pool = FaultTolerantActorManager(handles, init_id=1, backend=backend)
        self._recovery = ActorRecovery(self._pool, lambda: POLICY)

    def scores(self, texts: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        while len(found) < len(texts):
            self._recovery.take_back(timeout_s=1.0)
            for text in [text for text in texts if text not in found]:
                for i in self._pool.actor_ids_with_room("score")[:1]:
                    self._pool.foreach_actor_async("score", "score", kwargs={"text": text}, remote_actor_ids=[i])
            results = self._pool.fetch_first_async_reqs("score", timeout_seconds=None)
            found |= dict(answer for _, answer in self._recovery.answers(results))
        return found

    def stop(self) -> None:
        self._pool.clear()
