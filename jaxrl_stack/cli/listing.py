"""``jaxrl list``: lists algorithms and environments."""

from __future__ import annotations

import argparse

from jaxrl_stack.cli.common import CliError, one_line


def run(arguments: argparse.Namespace) -> int:
    """Prints the list that the options select: algorithms, environments, both, the environments of one suite (such as
    ``gymnax``), or the tuned settings of algorithms.
    """
    from jaxrl_stack.algorithms.registry import ALGORITHMS, tuned_evidence

    if arguments.envs is not None:
        return _list_suite(arguments.envs.removesuffix("/"))

    what = arguments.what
    if what == "tuned":
        for name in sorted(ALGORITHMS):
            for env, evidence in sorted(tuned_evidence(name).items()):
                print(f"  {name} {env}  {evidence}")
        return 0
    if what != "envs":
        if what is None:
            print("algorithms")
        for name in sorted(ALGORITHMS):
            print(f"  {name}")
    if what != "algorithms":
        from jaxrl_stack.env.jax_env import GYMNAX_PREFIX
        from jaxrl_stack.env.registry import GYMNAX_IDS
        from jaxrl_stack.env.suites import all_suites

        if what is None:
            print("environments")
        for name in GYMNAX_IDS:
            print(f"  {GYMNAX_PREFIX}{name}")
        for prefix, suite in sorted(all_suites().items()):
            how = f"jaxrl list --envs {prefix}" if suite.is_installed else suite.pip_line
            print(f"  {prefix}/..., {how}")
        print("  package.module:Class, a JAX environment of your own")
    return 0


def _list_suite(prefix: str) -> int:
    """Prints one line per environment of a suite. Environment ids of a suite have the same prefix, such as ``gymnax/``.

    Prints each line as soon as the environment is created, because creating some environments takes seconds or loads
    data.
    """
    from jaxrl_stack.env.registry import GYMNAX_IDS, resolve_env
    from jaxrl_stack.env.suites import all_suites

    suites = all_suites()
    if prefix != "gymnax" and prefix not in suites:
        raise CliError(
            f"--envs {prefix}: no suite of environments has this name. Suites are "
            f"{', '.join(sorted(['gymnax', *suites]))}."
        )
    try:
        ids = GYMNAX_IDS if prefix == "gymnax" else suites[prefix].load().ids()
    except ImportError as error:
        raise CliError(f"--envs: {error}") from error
    for env_id in ids:
        name = f"{prefix}/{env_id}"
        try:
            resolved = resolve_env(name)
            env = resolved.creator(resolved.context)
            print(f"{name}  {one_line(str(env.observation_space))}  {env.action_space}", flush=True)
        except Exception as error:  # one environment that lacks its data does not hide the others
            print(f"{name}  cannot be made: {one_line(f'{type(error).__name__}: {error}')}", flush=True)
    return 0
