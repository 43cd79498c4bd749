"""What an actor's process sets before its first JAX operation, and what the driver's does not."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import jax
import pytest

from jaxrl_stack.utils import actor_setup
from tests.pickled_by_value import pickled_by_value

SETTINGS = ("jax_num_cpu_devices", "jax_cpu_enable_async_dispatch", "jax_platforms")


class Process:
    """An actor that sets itself up, and tells what came of it."""

    def __init__(self, starts_backend: bool, num_gpus: int = 0, num_cpu_devices: int = 1):
        self.before = self.settings()
        if starts_backend:
            jax.devices()
        for num_cpus in (1, 5):  # The first call decides.
            actor_setup.set_up_actor(num_cpus=num_cpus, num_gpus=num_gpus, num_cpu_devices=num_cpu_devices)

    def settings(self):
        return {name: jax.config.values[name] for name in SETTINGS} | {"NPROC": os.environ.get("NPROC")}

    def settings_before(self):
        return self.before

    def compute(self):
        jax.jit(lambda x: x @ x)(jax.numpy.ones((8, 8))).block_until_ready()
        names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
        return len(jax.devices()), names.count("tf_XLAEigen")

    def notices(self):
        from jaxrl_stack.utils import notices

        return sorted(notices._given)

    def is_actor(self):
        return actor_setup.is_actor_process(), actor_setup.was_actor_restarted()


@pytest.fixture(scope="module")
def start(ray_session):
    with pickled_by_value(ray_session, sys.modules[__name__]):
        handles = []

        def start(num_cpus, **kwargs):
            handles.append(ray_session.remote(Process).options(num_cpus=num_cpus).remote(**kwargs))
            return handles[-1]

        yield start
        for handle in handles:
            ray_session.kill(handle)


def test_an_actor_keeps_to_its_cores_and_to_the_cpu(start, ray_session):
    # The driver's eight CPU devices are inherited by its actors, and are not theirs.
    assert os.environ["JAX_NUM_CPU_DEVICES"] == "8"
    before = {name: jax.config.values[name] for name in SETTINGS}
    actor_setup.set_up_actor(num_cpus=1, num_gpus=0)
    assert {name: jax.config.values[name] for name in SETTINGS} == before and "NPROC" not in os.environ
    actors = [
        start(1, starts_backend=False),
        # Granted two cores, whatever the arguments say.
        start(2, starts_backend=False, num_gpus=1, num_cpu_devices=2),
        start(0, starts_backend=True),
    ]
    alone, wide, late = ray_session.get([actor.settings.remote() for actor in actors])
    assert alone == {
        "jax_num_cpu_devices": 1,
        "jax_cpu_enable_async_dispatch": False,
        "jax_platforms": "cpu",
        "NPROC": "1",
    }
    assert (wide["jax_num_cpu_devices"], wide["NPROC"]) == (2, "2") and wide["jax_platforms"] is None
    assert late == ray_session.get(actors[2].settings_before.remote()) and late["NPROC"] is None
    assert (late["jax_num_cpu_devices"], late["jax_platforms"]) == (8, None)
    # XLA took it: as many threads as cores in each device's pool.
    assert ray_session.get(actors[0].compute.remote()) == (1, 1)
    assert ray_session.get(actors[1].compute.remote())[0] == 2
    notices = ray_session.get([actor.notices.remote() for actor in actors])
    assert notices[:2] == [[], []]
    (notice,) = notices[2]
    assert notice.startswith("The JAX backend of this actor runs already")
    assert ray_session.get(actors[0].is_actor.remote()) == (True, False)
    assert not actor_setup.is_actor_process() and not actor_setup.was_actor_restarted()


def test_the_hosts_process_is_prepared_before_the_backend_starts_or_told_that_it_is_late():
    program = (
        "import sys, jax\n"
        "from jaxrl_stack.utils.actor_setup import is_backend_up, prepare_host_process\n"
        "num_devices = jax.config.values['jax_num_cpu_devices']\n"
        "assert not is_backend_up() and jax.config.values['jax_num_cpu_devices'] == num_devices\n"
        "prepare_host_process()\n"
        "assert not jax.config.values['jax_cpu_enable_async_dispatch'] and not is_backend_up()\n"
        "jax.devices()\n"
        "assert is_backend_up() and jax.config.values['jax_num_cpu_devices'] == num_devices\n"
        "prepare_host_process()\n"
        "jax.config.update('jax_cpu_enable_async_dispatch', True)\n"
        "prepare_host_process()\n"
        "prepare_host_process()\n"
        "assert jax.config.values['jax_cpu_enable_async_dispatch'] and 'ray' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("The JAX backend runs already") == 1
