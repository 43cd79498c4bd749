"""Marks of the tests, set from what each of them uses: its fixtures, and the names in its code and in its helpers'."""

from __future__ import annotations

import functools
import inspect
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

ROOT = str(pathlib.Path(__file__).parent)
PLAIN = (str, bytes, int, float, bool, type(None))
"""Types of what holds no functions: most of what parameters are."""
OURS = (ROOT, str(pathlib.Path(ROOT).parent / "bench"))
"""Folders whose functions are looked into: the tests', and the benchmarks', which make contenders for them."""

FIXTURES = {"ray": {"ray_session"}}
"""Mark → fixtures, of which a test with this mark uses one."""
NAMES = {
    "process": {"subprocess", "multiprocessing", "nbclient"},
    "trains": {"build_algo", "build_learner", "build_learner_group", "train", "evaluate", "Tuner"}
    | {"SingleAgentEnvRunner", "MultiAgentEnvRunner", "EnvRunnerGroup", "RLModuleSpec", "MultiRLModuleSpec"}
    | {"DefaultPPORLModule", "DefaultDQNRLModule", "DefaultSACRLModule", "GymnaxEnv"}
    | {"LearnerGroup", "reset_config", "make_loop", "learn", "run_seeds", "run_sweep"}
    | {"make_rollout", "run_rllib_example_script_experiment"}
    | {"check_steps", "check_random_steps", "reset_env", "step_env"}  # of suites' environments
    | {"check_jax_env", "GymnasiumFromJax"}  # an environment of which every call is compiled
    | {"exec"},  # examples of pages
    "soak": {"growth"},
}
"""Mark → names, of which a test with this mark has one in its code, its fixtures', its parameters' or its helpers'."""
FILES = {
    "hostile": {"checkpoints/test_hostile.py", "checkpoints/test_kills.py", "datasets/test_hostile_data.py"},
    "trains": {
        "env/test_small_suites.py",  # suites compile what their environments are asked
        "algorithms/dreamerv3/test_golden.py",  # networks of more than one kind, with their gradients
        "algorithms/dreamerv3/test_imagined_video.py",
        "algorithms/dreamerv3/test_module.py",
        "algorithms/dreamerv3/test_true_dynamics.py",
        "algorithms/dreamerv3/test_world_model_learns.py",
        "algorithms/marwil/test_marwil_golden.py",
        "algorithms/test_cql_iql.py",
    },
}
"""Mark → files whose tests all have it."""


class Slow(NamedTuple):
    """Tests that are left out of the default set, since another test keeps what they promise."""

    file: str
    """Relative to this folder."""
    names: str
    """Names of its tests, one a line, with ``[case]`` for one case of a test; none for all tests of the file."""
    kept_by: str
    """``file::name`` of a test in the default set that fails when the promise is broken."""
    reason: str

    def tests(self) -> list[str]:
        """``file::name`` of each."""
        return [f"{self.file}::{name.strip()}" for name in self.names.strip().splitlines()]


SLOW: tuple[Slow, ...] = (
    # -------------------------------------------------------------------------- pages and notebooks beyond one per kind
    Slow(
        "test_docs.py",
        "test_what_remembers_runs_as_the_page_shows_it",
        kept_by="algorithms/test_recurrent_ppo.py::test_a_run_goes_on_bit_for_bit",
        reason="the page's recurrent networks are those of the tests of recurrent PPO",
    ),
    Slow(
        "test_docs.py",
        "test_examples_of_modules_run_as_the_page_shows_them",
        kept_by="examples/test_example_modules.py::test_the_second_part_is_drawn_given_the_first",
        reason="the page shows the example modules, which have tests of their own",
    ),
    Slow(
        "test_docs.py",
        "test_recorded_steps_are_learned_from_as_the_page_shows_it",
        kept_by="algorithms/marwil/test_marwil.py::test_it_learns_what_was_recorded_and_goes_on",
        reason="recording steps and learning from them is what the tests of offline algorithms do",
    ),
    Slow(
        "test_docs.py",
        "test_populations_train_as_the_page_shows_it",
        kept_by="execution/test_population.py::test_members_are_compared_as_a_sweep",
        reason="the page trains, draws and restores populations as their own tests do",
    ),
    Slow(
        "test_docs.py",
        "test_the_examples_of_several_agents_run",
        kept_by="execution/test_multi_agent.py::test_both_policies_are_trained_and_reported",
        reason="policies of several agents are trained and reported by the tests of several agents",
    ),
    Slow(
        "test_docs.py",
        """
        test_tutorials_run[your_environment]
        test_tutorials_run[your_parts]
        test_tutorials_run[images]
        test_tutorials_run[questions]
        test_tutorials_run[scaling]
        test_tutorials_run[serving]
        """,
        kept_by="test_docs.py::test_tutorials_run[first_agent]",
        reason="one tutorial is run by default; tests of environments, images and policies do what others show",
    ),
    Slow(
        "test_notebooks.py",
        """
        test_gymnasium_trains_evaluates_and_calls_back
        test_tune_finds_the_best_trial
        test_pixels_and_masks_are_shown
        test_a_network_with_memory_stands_beside_one_without_and_acts
        test_seeds_are_a_band_and_the_best_of_them_is_evaluated
        test_a_sweep_is_a_table_and_a_map
        test_what_was_recorded_is_shown_and_learned_from
        test_estimates_of_policies_stand_beside_the_truth
        test_two_policies_have_a_curve_and_games
        """,
        kept_by="test_notebooks.py::test_the_curve_is_one_display_that_is_updated",
        reason="one notebook is run by default; the others show in theirs what pages and tests of the same subject do",
    ),
    Slow(
        "runs/test_curves_page.py",
        "test_the_examples_run",
        kept_by="runs/test_plots.py::test_a_figure_has_a_line_for_each_group_and_a_band_for_its_seeds",
        reason="the figures of the page are those of the tests of figures",
    ),
    Slow(
        "execution/test_asynchronous.py",
        "test_the_page_runs_as_it_is_written",
        kept_by="execution/test_asynchronous.py::test_runners_sample_while_learners_learn",
        reason="the page's script is the configuration of the test that keeps this",
    ),
    Slow(
        "test_joined_processes.py",
        "test_the_script_of_the_page_runs",
        kept_by="test_joined_processes.py::test_two_processes_train_as_two_devices_of_one",
        reason="the page's script joins processes as the tests of them do",
    ),
    Slow(
        "test_images.py",
        """
        test_the_examples_of_the_page_run[1]
        test_the_examples_of_the_page_run[2]
        """,
        kept_by="test_images.py::test_the_examples_of_the_page_run[0]",
        reason="one example of the page is run by default",
    ),
    Slow(
        "test_coming_from.py",
        "test_the_script_for_users_of_stable_baselines3_trains_saves_and_acts",
        kept_by="test_coming_from.py::test_the_script_for_users_of_rllib_trains",
        reason="one script of these pages is trained by default",
    ),
    # -------------------------------------------------------------------- members of populations that are trained alone
    Slow(
        "execution/test_population.py",
        """
        test_each_member_is_the_run_that_it_would_be_alone[APPO]
        test_each_member_is_the_run_that_it_would_be_alone[PPO_cnn_lstm]
        test_each_member_is_the_run_that_it_would_be_alone[TQC]
        """,
        kept_by="execution/test_population.py::test_each_member_is_the_run_that_it_would_be_alone[DQN_prioritised_masks]",
        reason="one off-policy population is compared by default, and one of PPO by the test of filters",
    ),
    # -------------------------------------------------------------------------------------- full products of parameters
    Slow(
        "env/test_jax_env.py",
        """
        test_every_gymnax_env_keeps_its_spaces[Acrobot-v1]
        test_every_gymnax_env_keeps_its_spaces[MountainCar-v0]
        test_every_gymnax_env_keeps_its_spaces[MountainCarContinuous-v0]
        test_every_gymnax_env_keeps_its_spaces[Asterix-MinAtar]
        test_every_gymnax_env_keeps_its_spaces[Freeway-MinAtar]
        test_every_gymnax_env_keeps_its_spaces[Seaquest-MinAtar]
        test_every_gymnax_env_keeps_its_spaces[SpaceInvaders-MinAtar]
        test_every_gymnax_env_keeps_its_spaces[MemoryChain-bsuite]
        test_every_gymnax_env_keeps_its_spaces[UmbrellaChain-bsuite]
        test_every_gymnax_env_keeps_its_spaces[DiscountingChain-bsuite]
        test_every_gymnax_env_keeps_its_spaces[MNISTBandit-bsuite]
        test_every_gymnax_env_keeps_its_spaces[SimpleBandit-bsuite]
        test_every_gymnax_env_keeps_its_spaces[FourRooms-misc]
        test_every_gymnax_env_keeps_its_spaces[MetaMaze-misc]
        test_every_gymnax_env_keeps_its_spaces[PointRobot-misc]
        test_every_gymnax_env_keeps_its_spaces[BernoulliBandit-misc]
        test_every_gymnax_env_keeps_its_spaces[GaussianBandit-misc]
        test_every_gymnax_env_keeps_its_spaces[Reacher-misc]
        test_every_gymnax_env_keeps_its_spaces[Swimmer-misc]
        test_every_gymnax_env_keeps_its_spaces[Pong-misc]
        """,
        kept_by="env/test_jax_env.py::test_steps_of_every_gymnax_env_have_the_shapes_and_types_of_its_spaces",
        reason="shapes and types of all environments are known without a compiler, values of one per kind with it",
    ),
    Slow(
        "execution/test_multi_agent_probes.py",
        """
        test_two_policies_learn_the_known_values[TurnsProbe-False]
        test_two_policies_learn_the_known_values[ArrivalProbe-True]
        """,
        kept_by="execution/test_multi_agent_probes.py::test_two_policies_learn_the_known_values[TurnsProbe-True]",
        reason="each probe is learned in one place by default, and both places are compared by the test of two drivers",
    ),
    Slow(
        "execution/test_sources.py",
        """
        test_it_trains_evaluates_and_goes_on[gymnax/CartPole-v1-gymnax/CartPole-v1]
        test_it_trains_evaluates_and_goes_on[CartPole-v1-gymnax/CartPole-v1]
        test_it_trains_evaluates_and_goes_on[CartPole-v1-CartPole-v1]
        """,
        kept_by="execution/test_sources.py::test_it_trains_evaluates_and_goes_on[gymnax/CartPole-v1-CartPole-v1]",
        reason="sources of training and of evaluation are paired once each by default, not all with all",
    ),
    Slow(
        "execution/test_sources.py",
        """
        test_the_same_weights_are_evaluated_as_where_training_has_that_environment[CartPole-v1-gymnax/CartPole-v1]
        test_statistics_of_training_are_those_of_evaluation[gymnax/CartPole-v1-CartPole-v1]
        test_a_reset_starts_evaluation_anew[gymnax/CartPole-v1-CartPole-v1]
        test_an_environment_beside_the_data_is_for_evaluation_and_for_its_spaces[host_data-on_device]
        test_what_was_cloned_acts[data-on_host]
        test_an_evaluation_on_data_is_the_loss_of_rows_that_are_held_out[device-data+host]
        test_an_evaluation_on_data_is_the_loss_of_rows_that_are_held_out[data-data+host]
        test_an_evaluation_on_data_leaves_training_as_it_is[device]
        test_the_command_line_evaluates_in_the_environment_that_it_names[data]
        test_two_learner_actors_learn_from_data_and_evaluate_on_it_as_one_learner_of_two_devices[data]
        """,
        kept_by="execution/test_sources.py::test_statistics_of_training_are_those_of_evaluation[CartPole-v1-gymnax/CartPole-v1]",
        reason="each of these tests runs with another source by default: this is its second or third case",
    ),
    Slow(
        "execution/test_multi_agent.py",
        """
        test_both_policies_are_trained_and_reported[short_cart_poles-settings0]
        test_drivers_agree_on_steps_in_which_nobody_acts[visits0]
        test_each_policy_has_its_own_statistics_and_those_are_trained_that_a_function_names[MultiAgentCartPole0]
        test_steps_of_agents_are_counted_if_asked_for[RockPaperScissors0]
        test_episodes_of_several_agents_are_filmed[tic_tac_toe]
        test_a_policy_is_trained_against_one_that_learns_nothing[StatefulRandomRLModule]
        """,
        kept_by="execution/test_multi_agent.py::test_both_policies_are_trained_and_reported[come_and_go-settings1]",
        reason="each of these tests runs with another environment by default; come_and_go has all that the others have",
    ),
    # ----------------------------------------------------------------------------------- contenders of the benchmarks
    Slow(
        "test_bench.py",
        """
        test_vtrace_throughput_writes_a_report
        test_chunks_do_not_change_the_update
        test_loops_run_and_time_every_stage
        test_the_sorting_loop_trains_on_images
        test_the_vtrace_loop_makes_the_librarys_update
        test_a_recurrent_layer_is_timed_beside_the_librarys_cell
        """,
        kept_by="test_bench.py::test_throughput_writes_a_report",
        reason="one contender is timed and reported by default; the others are loops beside the library",
    ),
    Slow(
        "test_bench.py",
        """
        test_off_policy_loops_fill_a_buffer_then_learn
        test_this_project_is_an_off_policy_contender[device-sac-1.0]
        test_this_project_is_a_contender[trajectories-8000]
        test_this_project_is_a_contender[wall_clock-256]
        """,
        kept_by="test_bench.py::test_this_project_is_an_off_policy_contender[host-dqn-0.2]",
        reason="one job and one algorithm of each contender run by default",
    ),
    Slow(
        "test_bench.py",
        """
        test_learning_judges_seeds_by_target_and_limit[5.0-0-1]
        test_learning_judges_seeds_by_what_holds[501.0-1]
        test_a_target_that_the_last_episodes_reach_by_luck_is_not_reached
        """,
        kept_by="test_bench.py::test_learning_judges_seeds_by_target_and_limit[501.0-1-0]",
        reason="one learning curve is judged by default, and one that holds; the others train for another verdict",
    ),
)
"""Repetitions of promises that the default set keeps; `.ci/run` runs them, and so does ``-m slow``."""


def is_slow(test: str, listed: tuple[Slow, ...] = SLOW) -> bool:
    """Tell if ``file::name`` is a test, a case of a test, or in a class or file, that is listed."""
    return any(test == name or test.startswith((f"{name}[", f"{name}::")) for name in _slow_names(listed))


@functools.cache
def _slow_names(listed: tuple[Slow, ...]) -> frozenset[str]:
    return frozenset(name for slow in listed for name in slow.tests() or [slow.file])


def marks_of(path: str, fixtures: Iterable[str], code: Iterable[Any]) -> set[str]:
    """Marks of a test; "fast" if it has no other.

    Args:
        path: Its file, relative to this folder.
        fixtures: Names of all fixtures that it uses.
        code: Its function, those of its fixtures, and its parameters.
    """
    fixtures = set(fixtures)
    names = set().union(*map(names_below, reachable(code)))
    marks = {mark for mark, files in FILES.items() if path in files}
    marks |= {mark for mark, wanted in FIXTURES.items() if wanted & fixtures}
    marks |= {mark for mark, wanted in NAMES.items() if wanted & names}
    return marks or {"fast"}


def reachable(things: Iterable[Any]) -> list[types.FunctionType]:
    """Functions that these things are or hold; what those mention is looked for by `names_below`."""
    waiting, seen, functions = list(things), set(), []
    while waiting:
        thing = waiting.pop()
        if type(thing) in PLAIN or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, types.FunctionType):
            if _is_ours(thing):
                functions.append(thing)
        else:
            waiting += _children(thing)
    return functions


@functools.cache
def names_below(function: types.FunctionType) -> frozenset[str]:
    """Names in a function's code and in that of all functions that it mentions, directly or not."""
    waiting, seen = [function], {function}
    while waiting:
        found = _mentioned(waiting.pop()) - seen
        seen |= found
        waiting += found
    return frozenset().union(*map(names_in, seen))


@functools.cache
def names_in(function: types.FunctionType) -> frozenset[str]:
    """Names of globals, modules and attributes in a function's code."""
    names, waiting = set(), [function.__code__]
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return frozenset(names)


def _children(thing: Any) -> Iterator[Any]:
    if isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, staticmethod | classmethod | types.MethodType):
        yield thing.__func__
    elif isinstance(thing, property):
        yield thing.fget
    elif isinstance(thing, type):
        if _is_ours(thing):
            yield from vars(thing).values()
            yield from thing.__bases__
    elif hasattr(thing, "__wrapped__"):  # functools.cache, fixtures
        yield inspect.unwrap(thing)


@functools.cache
def _mentioned(function: types.FunctionType) -> frozenset[types.FunctionType]:
    """Functions that one mentions, itself or by what holds them; looked for once, however many tests use it."""
    own = function.__globals__
    spaces = [own, *(vars(own[name]) for name in _modules_of_ours(function.__module__))]
    mentioned = [space[name] for name in names_in(function) for space in spaces if name in space]
    mentioned += [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    mentioned += [*(function.__defaults__ or ()), getattr(function, "__wrapped__", None)]
    return frozenset(reachable(mentioned))


@functools.cache
def _modules_of_ours(module: str) -> list[str]:
    """Names by which a module knows other ones of ours."""
    names = vars(sys.modules[module]).items()
    return [name for name, thing in names if isinstance(thing, types.ModuleType) and _is_ours(thing)]


def _is_ours(thing: Any) -> bool:
    if isinstance(thing, types.FunctionType):
        file = thing.__code__.co_filename
    else:
        module = thing if isinstance(thing, types.ModuleType) else sys.modules.get(thing.__module__)
        file = getattr(module, "__file__", None) or ""
    return file.startswith(OURS)
