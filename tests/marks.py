"""Marks of the tests, set from what each of them uses: its fixtures, and the names in its code and in its helpers'."""

from __future__ import annotations

import functools
import inspect
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.costs import LONG_TESTS

ROOT = str(pathlib.Path(__file__).parent)
PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
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
    | {"LearnerGroup", "reset_config", "make_loop", "learn", "run_seeds", "run_sweep", "run_benchmark"}
    | {"make_rollout", "run_rllib_example_script_experiment"}
    | {"check_steps", "check_random_steps", "reset_env", "step_env"}  # of suites' environments
    | {"check_jax_env", "GymnasiumFromJax"}  # an environment of which every call is compiled
    | {"exec"},  # examples of pages
    "soak": {"growth"},
}
"""Mark → names, of which a test with this mark has one in its code, its fixtures', its parameters' or its helpers'."""
LISTED = {
    "long": {*LONG_TESTS.read_text().splitlines()},
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
"""Mark → files whose tests all have it, and ``file::name`` of single tests."""


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
    # ------------------------------------------------------------------------------------------- a cluster of its own
    Slow(
        "test_cluster.py",
        "test_training_survives_a_lost_node_and_uses_a_new_one",
        kept_by="core/test_joined_learners.py::"
        "test_learners_wait_for_a_node_and_start_again_if_their_node_is_lost_before_they_start",
        reason="four nodes take a minute; fakes lose actors, answers and nodes, and placement is tested without Ray",
    ),
    # -------------------------------------------------------------------------- pages and notebooks beyond one per kind
    Slow(
        "test_readme.py",
        "test_python_examples_run",
        kept_by="test_readme.py::test_the_example_of_the_readme_runs",
        reason="the README's example runs by default; the guide that goes on from it shows what other files test",
    ),
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
        test_population_based_training_has_a_lineage_and_a_config
        test_a_collapse_is_found_and_undone
        test_connect_four_has_a_win_rate_ratings_and_a_game
        """,
        kept_by="test_notebooks.py::test_the_curve_is_one_display_that_is_updated",
        reason="one notebook is run by default; the others show in theirs what pages and tests of the same subject do",
    ),
    Slow(
        "test_docs.py",
        "test_tutorials_run[self_play]",
        kept_by="algorithms/test_tournament.py::test_the_same_seed_plays_the_same_games",
        reason="the page's calls are those of the tests of tournaments",
    ),
    Slow(
        "test_docs.py",
        "test_tutorials_run[tuning]",
        kept_by="runs/test_scheduled_sweep.py::test_the_worst_members_become_changed_copies_of_the_best",
        reason="the page's calls are those of the tests of scheduled sweeps",
    ),
    Slow(
        "test_docs.py",
        "test_tutorials_run[benchmarks]",
        kept_by="runs/test_benchmark.py::test_the_command_continues_and_compare_prints_the_table",
        reason="the page's calls are those of the tests of benchmarks",
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
        kept_by="test_joined_processes.py::test_two_processes_learn_from_data_and_evaluate_on_it_as_two_devices_of_one",
        reason="the page's script joins processes as the tests of them do",
    ),
    Slow(
        "test_images.py",
        "test_the_examples_of_the_page_run",
        kept_by="test_images.py::test_images_of_other_sizes_are_trained_on_with_filters_that_fit",
        reason="the page's settings of networks for images are those of the other tests of the file",
    ),
    Slow(
        "core/test_compute_dtype.py",
        "test_the_pages_example_runs",
        kept_by="core/test_compute_dtype.py::test_training_and_checkpoints",
        reason="the page trains in bfloat16 as this test does, and lowers as tests of lowering do",
    ),
    Slow(
        "test_recording.py",
        "test_the_examples_of_the_page_run",
        kept_by="test_recording.py::test_evaluations_are_recorded_every_so_many_iterations",
        reason="the page records episodes and evaluations as other tests of the file do",
    ),
    Slow(
        "test_coming_from.py",
        "test_the_script_for_users_of_stable_baselines3_trains_saves_and_acts",
        kept_by="test_coming_from.py::test_the_script_for_users_of_rllib_trains",
        reason="one script of these pages is trained by default",
    ),
    Slow(
        "examples/test_multi_agent_scripts.py",
        """
        test_example_scripts_train[multi_agent_pendulum]
        test_example_scripts_train[custom_heuristic_policy]
        test_example_scripts_train[agents_act_simultaneously]
        """,
        kept_by="examples/test_multi_agent_scripts.py::test_example_scripts_train[multi_agent_cartpole]",
        reason="scripts of other kinds of agents run by default; policies that learn nothing have tests of their own",
    ),
    Slow(
        "test_key_concepts.py",
        "test_actors_of_runners_and_a_learner_by_hand_as_the_page_shows_it",
        kept_by="env/test_multi_agent_actors.py::test_an_env_runner_as_an_actor_by_hand",
        reason="a runner that is made an actor by hand samples there, too; groups of actors have tests of their own",
    ),
    Slow(
        "test_key_concepts.py",
        "test_a_trial_with_an_env_runner_actor_and_acting_with_its_checkpoint",
        kept_by="tune/test_tuner.py::test_a_name_a_config_with_a_grid_a_stop_on_a_nested_key_and_the_best_checkpoint",
        reason="a trial and its best checkpoint are those of the test of tuners",
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
        test_two_policies_learn_the_known_values[ArrivalProbe-False]
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
        "acting/test_agents_episodes.py",
        """
        test_episodes_have_the_steps_that_are_learned_from[rock_paper_scissors]
        test_episodes_have_the_steps_that_are_learned_from[tic_tac_toe]
        """,
        kept_by="acting/test_agents_episodes.py::test_episodes_have_the_steps_that_are_learned_from[come_and_go]",
        reason="agents that come and go act together and in turns, as those of the other games do",
    ),
    Slow(
        "execution/test_module_changes.py",
        """
        test_another_module_changes_nothing_of_the_others[host]
        test_a_module_takes_the_place_of_another_one[device]
        test_a_mapping_changes_without_a_change_of_modules[host]
        """,
        kept_by="execution/test_module_changes.py::test_another_module_changes_nothing_of_the_others[device]",
        reason="each change is made by one driver by default, and what is refused by both",
    ),
    Slow(
        "policy/test_policies_of_agents.py",
        """
        test_agents_act_with_their_own_policies[host]
        test_agents_that_are_not_known_are_refused[host]
        test_one_policy_is_loaded_alone[host]
        test_each_policy_is_exported_alone[host]
        test_a_checkpoint_of_several_agents_goes_on[host]
        """,
        kept_by="policy/test_policies_of_agents.py::test_agents_act_with_their_own_policies[device]",
        reason="a policy is made of modules and settings, which are the same wherever they were trained",
    ),
    Slow(
        "algorithms/test_cql_iql.py",
        """
        test_it_learns_from_images[cql]
        test_streamed_data_is_the_same_to_it[iql]
        test_two_devices_share_a_batch[cql]
        test_two_learner_actors_train_it[iql]
        test_sac_continues_with_the_data_beside_fresh_experience[iql]
        """,
        kept_by="algorithms/test_cql_iql.py::test_it_learns_from_images[iql]",
        reason="data, devices and actors know nothing of the algorithm: each is tested with one of the two by default",
    ),
    Slow(
        "test_action_masks.py",
        "test_no_masked_action_is_ever_chosen[PPOConfig-legal-settings1-1]",
        kept_by="test_action_masks.py::test_no_masked_action_is_ever_chosen[PPOConfig-legal-settings0-4]",
        reason="several actions are masked on the host by default, and images stand beside a mask in another test",
    ),
    Slow(
        "test_images.py",
        "test_bytes_are_kept_as_bytes_and_large_numbers_beside_them_as_numbers[PPOConfig-blinking-host-False]",
        kept_by="test_images.py::test_bytes_are_kept_as_bytes_and_large_numbers_beside_them_as_numbers[PPOConfig-blinking-False]",
        reason="the host's bytes are looked at with SAC by default, PPO's on the device",
    ),
    Slow(
        "algorithms/impala/test_impala_runs.py",
        """
        test_it_trains[IMPALAConfig-host-masks]
        test_it_trains[APPOConfig-device-cnn]
        test_several_policies_of_agents_that_wait_for_each_other[IMPALAConfig]
        """,
        kept_by="algorithms/impala/test_impala_runs.py::test_several_policies_of_agents_that_wait_for_each_other[APPOConfig]",
        reason="masks and images reach all losses alike; both algorithms and both drivers train with memory by default",
    ),
    Slow(
        "test_recurrent_replay.py",
        """
        test_both_drivers_learn_the_same_from_the_same_sequences[SAC]
        test_estimates_of_memory_count_recurrent_states[SAC]
        """,
        kept_by="test_recurrent_replay.py::test_both_drivers_learn_the_same_from_the_same_sequences[DQN]",
        reason="sequences are drawn without regard to the algorithm; SAC's loss of them has tests of its own",
    ),
    Slow(
        "execution/test_recorded_start.py",
        """
        test_every_train_batch_has_a_share_of_them[gymnax/CartPole-v1-EpisodeReplayBuffer]
        test_every_train_batch_has_a_share_of_them[CartPole-v1-PrioritizedEpisodeReplayBuffer]
        """,
        kept_by="execution/test_recorded_start.py::"
        "test_every_train_batch_has_a_share_of_them[gymnax/CartPole-v1-PrioritizedEpisodeReplayBuffer]",
        reason="drivers and buffers are paired once each by default",
    ),
    Slow(
        "execution/test_training_steps.py",
        """
        test_a_step_may_repeat_another_one_on_both_drivers[CartPole-v1-Twice]
        test_a_step_may_repeat_another_one_on_both_drivers[CartPole-v1-TwicePlanned]
        """,
        kept_by="execution/test_training_steps.py::"
        "test_a_step_may_repeat_another_one_on_both_drivers[gymnax/CartPole-v1-Twice]",
        reason="steps of one's own run unchanged on both drivers by another test",
    ),
    Slow(
        "env/test_small_suites.py",
        """
        test_random_steps_keep_to_the_spaces[jumanji/Cleaner-v0]
        test_random_steps_keep_to_the_spaces[jumanji/MultiCVRP-v0]
        test_random_steps_keep_to_the_spaces[jumanji/SearchAndRescue-v0]
        """,
        kept_by="env/test_small_suites.py::test_random_steps_keep_to_the_spaces[jumanji/Tetris-v0]",
        reason="one environment of each suite is stepped by default; the form of other spaces has a test of its own",
    ),
    Slow(
        "test_joined_processes.py",
        """
        test_two_processes_train_as_two_devices_of_one
        test_every_process_reports_what_all_have_done
        test_every_process_evaluates_alike
        test_a_checkpoint_of_several_processes_goes_on_in_them_and_in_one
        """,
        kept_by="test_joined_driver.py::test_two_actors_train_as_two_devices_of_one_process",
        reason="actors are joined as processes are, and train, report, evaluate and go on as one by default; processes "
        "that a launcher starts train, learn from data, call back and refuse",
    ),
    Slow(
        "test_cli.py",
        "test_what_new_writes_trains[algo]",
        kept_by="test_cli.py::test_what_new_writes_trains[module]",
        reason="what is written is imported, checked and trained with for modules by default",
    ),
    Slow(
        "execution/test_multi_agent.py",
        "test_both_policies_are_trained_and_reported[short_cart_poles-settings0]",
        kept_by="execution/test_multi_agent_two_drivers.py::test_the_same_steps_make_the_same_update",
        reason="recurrent policies of several agents are trained on both drivers by default, and others are reported",
    ),
    Slow(
        "execution/test_multi_agent_two_drivers.py",
        "test_the_same_steps_make_the_same_update[RockPaperScissors-RockPaperScissors-networks0-False]",
        kept_by="execution/test_multi_agent_two_drivers.py::"
        "test_the_same_steps_make_the_same_update[ComeAndGo-ComeAndGo-networks1-True]",
        reason="agents with memories that wait for each other are compared by default; those that always act have less",
    ),
    Slow(
        "execution/test_multi_agent.py",
        """
        test_each_policy_has_its_own_statistics_and_those_are_trained_that_a_function_names[MultiAgentCartPole0]
        test_steps_of_agents_are_counted_if_asked_for[RockPaperScissors0]
        test_episodes_of_several_agents_are_filmed[tic_tac_toe]
        """,
        kept_by="execution/test_multi_agent.py::test_both_policies_are_trained_and_reported[come_and_go-settings1]",
        reason="each of these tests runs on the host, or with another game, by default",
    ),
    Slow(
        "execution/test_multi_agent_probes.py",
        "test_two_policies_learn_the_known_values[OwnRewardProbe-True]",
        kept_by="execution/test_multi_agent_probes.py::test_two_policies_learn_the_known_values[OneIsCutOffProbe-True]",
        reason="of agents that end at different steps each gets its own rewards, too, or their values would be others",
    ),
    Slow(
        "execution/test_multi_agent_probes.py",
        "test_two_policies_learn_the_known_values[OwnActionProbe-False]",
        kept_by="execution/test_multi_agent_probes.py::"
        "test_one_policy_learns_the_known_values_of_both_agents[OwnActionProbe-True]",
        reason="right actions of each agent are learned by one policy, and another probe by two on the host",
    ),
    Slow(
        "execution/test_multi_agent_probes.py",
        "test_one_policy_learns_the_known_values_of_both_agents[OwnRewardProbe-False]",
        kept_by="execution/test_multi_agent_probes.py::"
        "test_one_policy_learns_the_known_values_of_both_agents[OwnActionProbe-True]",
        reason="one policy of both agents learns one probe by default, which asks for the right rewards, too",
    ),
    Slow(
        "execution/test_multi_agent_probes.py",
        """
        test_replay_learns_the_known_values[DQNConfig-TurnsToldApartProbe-True-False]
        test_replay_learns_the_known_values[DQNConfig-OneIsCutOffProbe-False-False]
        test_replay_learns_the_known_values[DQNConfig-PaidLaterProbe-False-False]
        test_replay_learns_the_known_values[DQNConfig-OwnActionProbe-True-False]
        test_replay_learns_the_known_values[DQNConfig-ArrivalProbe-False-False]
        test_replay_learns_the_known_values[SACConfig-TurnsProbe-False-False]
        test_replay_learns_the_known_values[DQNConfig-TurnsProbe-False-True]
        test_replay_learns_the_known_values[DQNConfig-OneIsCutOffProbe-False-True]
        test_replay_learns_the_known_values[DQNConfig-OneIsCutOffToldApartProbe-True-True]
        test_replay_learns_the_known_values[DQNConfig-PaidLaterProbe-False-True]
        test_replay_learns_the_known_values[DQNConfig-OwnActionProbe-True-True]
        test_replay_learns_the_known_values[DQNConfig-ArrivalProbe-False-True]
        test_replay_learns_the_known_values[SACConfig-TurnsProbe-False-True]
        test_replay_learns_the_known_values[SACConfig-TurnsToldApartProbe-True-True]
        test_replay_learns_the_known_values[SACConfig-OneIsCutOffProbe-False-True]
        test_replay_learns_the_known_values[SACConfig-OneIsCutOffToldApartProbe-True-True]
        test_replay_learns_the_known_values[SACConfig-PaidLaterProbe-False-True]
        test_replay_learns_the_known_values[SACConfig-OwnActionProbe-True-True]
        test_replay_learns_the_known_values[SACConfig-OneIsCutOffToldApartProbe-True-False]
        test_replay_learns_the_known_values[SACConfig-PaidLaterProbe-False-False]
        test_replay_learns_the_known_values[SACConfig-OwnActionProbe-True-False]
        test_replay_learns_the_known_values[SACConfig-ArrivalProbe-False-False]
        test_replay_learns_the_best_numbers_of_agents_that_wait[TQCConfig-more1]
        """,
        kept_by="execution/test_multi_agent_probes.py::"
        "test_replay_learns_the_known_values[DQNConfig-TurnsProbe-False-False]",
        reason="DQN and SAC each learn turns and ends on the host by default, and one probe each on the device",
    ),
    Slow(
        "test_probes.py",
        """
        test_ppo_learns_the_known_values[ConstantValueProbe]
        test_ppo_learns_the_known_values[ObservationProbe]
        """,
        kept_by="test_probes.py::test_ppo_learns_the_known_values[DiscountingProbe]",
        reason="values of two observations, of which one is discounted, need what these two probes isolate",
    ),
    Slow(
        "test_probes.py",
        """
        test_dqn_learns_the_known_values[ConstantValueProbe]
        test_dqn_learns_the_known_values[ObservationProbe]
        """,
        kept_by="test_probes.py::test_dqn_learns_the_known_values[DiscountingProbe]",
        reason="values of two observations, of which one is discounted, need what these two probes isolate",
    ),
    Slow(
        "test_probes.py",
        """
        test_impala_and_appo_learn_the_known_values[IMPALAConfig-DiscountingProbe]
        test_impala_and_appo_learn_the_known_values[APPOConfig-ActionRewardProbe]
        """,
        kept_by="test_probes.py::test_impala_and_appo_learn_the_known_values[APPOConfig-TruncationBootstrapProbe]",
        reason="IMPALA learns actions by default and APPO, by the same targets, values beyond a time limit",
    ),
    Slow(
        "execution/test_sources.py",
        """
        test_it_trains_without_evaluation[device]
        test_it_trains_without_evaluation[host]
        """,
        kept_by="execution/test_sources.py::test_it_trains_without_evaluation[host_data]",
        reason="most tests of both drivers train in environments without evaluation",
    ),
    Slow(
        "execution/test_offline_step.py",
        """
        test_a_training_step_is_a_pass_unless_it_is_told_otherwise[streamed]
        test_sequences_for_a_recurrent_module[resident]
        test_several_inputs_are_drawn_by_weight[streamed]
        test_two_learner_actors_learn_from_every_step_once[streamed]
        """,
        kept_by="execution/test_offline_step.py::test_every_step_comes_once_per_pass_also_after_a_resume_in_the_middle",
        reason="both places of data keep the order of steps by default; what reads them is tested with one",
    ),
    Slow(
        "core/test_compute_dtype.py",
        """
        test_parameters_are_the_same_float32_numbers[ppo-separate]
        test_parameters_are_the_same_float32_numbers[sac-discrete]
        test_outputs_are_float32_and_close[ppo-separate]
        test_outputs_are_float32_and_close[sac-discrete]
        test_gradients_are_float32_finite_and_close[ppo-separate]
        test_gradients_are_float32_finite_and_close[sac-discrete]
        """,
        kept_by="core/test_compute_dtype.py::test_outputs_are_float32_and_close[ppo]",
        reason="the layers are the same ones; one network of each family is computed in bfloat16 by default",
    ),
    Slow(
        "test_lowering.py",
        """
        test_programs_of_the_device_lower[ppo-continuous]
        test_programs_of_the_device_lower[sac-discrete]
        """,
        kept_by="test_lowering.py::test_programs_of_the_device_lower[ppo-2-devices]",
        reason="continuous actions are lowered with TQC by default, and discrete ones with PPO",
    ),
    Slow(
        "execution/test_reset.py",
        "test_a_run_after_a_reset_is_that_of_a_new_algorithm[host-dqn]",
        kept_by="execution/test_reset.py::test_a_run_after_a_reset_is_that_of_a_new_algorithm[device-dqn]",
        reason="a run on the host is reset with PPO and its connectors by default",
    ),
    Slow(
        "policy/test_policy.py",
        """
        test_a_batch_acts_as_evaluation_on_the_device_does[Pendulum-v1]
        test_a_single_action_of_the_algorithm_is_that_of_the_policy[Pendulum-v1]
        test_training_goes_on_without_a_change[Pendulum-v1]
        """,
        kept_by="policy/test_policy.py::test_one_environment_acts_as_evaluation_on_the_host_does[Pendulum-v1]",
        reason="a policy of continuous actions acts as its evaluation does by default",
    ),
    Slow(
        "algorithms/marwil/test_marwil.py",
        """
        test_it_learns_what_was_recorded_and_goes_on[mlp-marwil]
        test_it_learns_what_was_recorded_and_goes_on[lstm-bc]
        """,
        kept_by="algorithms/marwil/test_marwil.py::test_it_learns_what_was_recorded_and_goes_on[lstm-marwil]",
        reason="BC is MARWIL without weights: each network learns with one of both by default",
    ),
    Slow(
        "compat/test_pipelines.py",
        """
        test_a_module_of_the_learner_alone_rewards_what_surprises_it[host]
        test_off_policy_learners_optimize_modules_that_have_not_their_networks[SAC]
        """,
        kept_by="compat/test_pipelines.py::test_a_module_of_the_learner_alone_rewards_what_surprises_it[episodes]",
        reason="episodes of the host are learned from by default, and the learner does not know the algorithm",
    ),
    Slow(
        "compat/test_algorithms_and_losses.py",
        """
        test_a_term_of_ones_own_in_the_loss_of_every_algorithm[sac]
        test_learning_rate_schedulers[dqn]
        """,
        kept_by="compat/test_algorithms_and_losses.py::test_a_term_of_ones_own_in_the_loss_of_every_algorithm[dqn]",
        reason="an on-policy and an off-policy loss get a term by default, and optimizers know no algorithm",
    ),
    Slow(
        "test_failed_programs.py",
        "test_a_run_with_snapshots_is_the_one_without[DQNConfig-gymnax/CartPole-v1]",
        kept_by="test_failed_programs.py::test_a_run_with_snapshots_is_the_one_without[PPOConfig-gymnax/CartPole-v1]",
        reason="snapshots have no replay buffer, and DQN goes on from one by default",
    ),
    Slow(
        "test_failed_programs.py",
        "test_a_learner_of_this_process_goes_on_from_its_snapshot[DQNConfig]",
        kept_by="test_failed_programs.py::test_a_learner_of_this_process_goes_on_from_its_snapshot[PPOConfig]",
        reason="snapshots of learners know no algorithm; runs of DQN go on from one by default",
    ),
    Slow(
        "env/test_jax_env.py",
        """
        test_gymnax_envs_can_be_trained_on[Catch-bsuite]
        test_gymnax_envs_can_be_trained_on[DeepSea-bsuite]
        """,
        kept_by="env/test_jax_env.py::test_gymnax_envs_can_be_trained_on[Breakout-MinAtar]",
        reason="vectors, images and integers are trained on by default; matrices are flattened to vectors",
    ),
    Slow(
        "test_algorithm.py",
        "test_eager_runs_equal_compiled_ones",
        kept_by="test_algorithm.py::test_eager_runs_of_a_small_learner_equal_compiled_ones",
        reason="an eager run has the same operations one by one; by default of a loss that has few",
    ),
    Slow(
        "test_action_masks.py",
        "test_no_masked_action_is_ever_chosen[SACConfig-legal-settings4-1]",
        kept_by="test_action_masks.py::test_modules_give_masked_actions_probability_zero[SACConfig]",
        reason="drivers hand masks to PPO and DQN by default; what SAC makes of one is its module's",
    ),
    Slow(
        "test_action_masks.py",
        "test_no_masked_action_is_ever_chosen_behind_connectors[PPOConfig-legal-host-model1]",
        kept_by="test_action_masks.py::test_no_masked_action_is_ever_chosen_behind_connectors[PPOConfig-legal-model0]",
        reason="memory stands behind connectors on the device by default, and connectors run on the host with DQN",
    ),
    Slow(
        "test_images.py",
        "test_bytes_are_kept_as_bytes_and_large_numbers_beside_them_as_numbers[SACConfig-blinking-host-True]",
        kept_by="test_images.py::"
        "test_bytes_are_kept_as_bytes_and_large_numbers_beside_them_as_numbers[DQNConfig-blinking-host-False]",
        reason="the host's bytes are kept with DQN by default, and networks of SAC's kind read images in IQL's test",
    ),
    Slow(
        "examples/test_multi_agent_scripts.py",
        "test_example_scripts_train[multi_agent_observation_preprocessor]",
        kept_by="connectors/test_connectors_of_agents.py::test_an_observation_of_the_corridor_knows_of_the_other_agent",
        reason="the script's connectors have tests of their own, and scripts of other kinds of agents run by default",
    ),
    Slow(
        "test_evaluation.py",
        "test_inference_only_modules_have_what_acting_needs_and_nothing_else[DreamerV3-box-False]",
        kept_by="test_evaluation.py::"
        "test_inference_only_modules_have_what_acting_needs_and_nothing_else[DreamerV3-discrete-False]",
        reason="all parts of DreamerV3's module but the head of its actor are the same for both kinds of actions",
    ),
    Slow(
        "test_probes.py",
        "test_continuous_actions_in_asymmetric_bounds_are_found[TQCConfig-settings1]",
        kept_by="test_probes.py::test_continuous_actions_in_asymmetric_bounds_are_found[SACConfig-settings0]",
        reason="TQC's actor and bounds are SAC's; its quantiles and losses are compared with numbers of their own",
    ),
    Slow(
        "test_probes.py",
        "test_discrete_sac_learns_the_known_values[TruncationBootstrapProbe]",
        kept_by="test_probes.py::test_dqn_learns_the_known_values[TruncationBootstrapProbe]",
        reason="replay tells ends from time limits for DQN, too, and SAC's targets are compared with RLlib's",
    ),
    Slow(
        "checkpoints/test_resume.py",
        """
        test_another_process_goes_on_as_if_nothing_had_been[noisy]
        test_saves_and_evaluations_leave_no_trace[noisy]
        test_an_algorithm_that_has_trained_elsewhere_takes_it_over[noisy]
        test_the_state_has_all_of_it[noisy]
        """,
        kept_by="checkpoints/test_resume.py::test_another_process_goes_on_as_if_nothing_had_been[with_everything]",
        reason="the run with everything has the noisy module and its two devices, too",
    ),
    Slow(
        "algorithms/test_setting_changes.py",
        "test_each_optimizer_follows_its_own_setting[gymnax/Pendulum-v1]",
        kept_by="algorithms/test_setting_changes.py::test_each_optimizer_follows_its_own_setting[Pendulum-v1]",
        reason="settings reach programs on the device in other tests, and learners hand each to its optimizer",
    ),
    Slow(
        "core/test_compute_dtype.py",
        "test_training_from_replay",
        kept_by="core/test_compute_dtype.py::test_training_and_checkpoints",
        reason="PPO trains in bfloat16 by default; outputs and gradients of networks of SAC's kind are computed in it",
    ),
    Slow(
        "algorithms/dreamerv3/test_dreamerv3_runs.py",
        "test_it_trains_on_two_devices_from_the_first_iteration_on",
        kept_by="algorithms/dreamerv3/test_dreamerv3_runs.py::test_an_update_on_two_devices_is_that_of_one",
        reason="an update on two devices is compared by default, and DQN's tests divide memory and steps among them",
    ),
    Slow(
        "algorithms/dreamerv3/test_golden.py",
        """
        test_states_and_predictions_are_those_of_rllib[discrete]
        test_losses_of_the_world_model_are_those_of_rllib[discrete]
        test_rollouts_of_the_model_are_those_of_rllib[discrete]
        test_losses_of_the_critic_are_those_of_rllib[discrete]
        test_losses_of_the_actor_are_those_of_rllib_but_for_the_scale[discrete]
        test_gradients_are_those_of_rllib[discrete]
        """,
        kept_by="algorithms/dreamerv3/test_golden.py::test_gradients_are_those_of_rllib[image]",
        reason="the case of images has discrete actions, too, and the one of boxes observes vectors",
    ),
    Slow(
        "algorithms/dreamerv3/test_world_model_learns.py",
        "test_what_is_imagined_is_what_the_actions_lead_to",
        kept_by="algorithms/dreamerv3/test_golden.py::test_gradients_are_those_of_rllib[image]",
        reason="what the model learns from, its losses and their gradients, is compared with RLlib's by default",
    ),
    Slow(
        "algorithms/tqc/test_tqc_runs.py",
        "test_a_run_goes_on_exactly",
        kept_by="test_off_policy_device.py::test_a_resumed_run_is_the_uninterrupted_one",
        reason="state of learners, environments and memory is kept for all algorithms alike",
    ),
    Slow(
        "algorithms/impala/test_impala_learner.py",
        "test_a_target_policy_that_knows_no_resets_learns_the_same",
        kept_by="algorithms/impala/test_impala_learner.py::test_the_loss_of_sequences_is_that_of_their_steps[Unaware-8]",
        reason="such a module goes over the episodes of sequences in the same way, whether it is a target or not",
    ),
    Slow(
        "algorithms/impala/test_impala_runs.py",
        """
        test_two_devices_hold_the_same_parameters
        test_several_training_steps_are_one_call_of_the_program
        """,
        kept_by="algorithms/impala/test_impala_learner.py::test_two_devices_make_the_update_of_one",
        reason="an update on two devices is compared by default, and several steps in one call are tested with PPO",
    ),
    Slow(
        "algorithms/impala/test_impala_runs.py",
        "test_a_run_is_the_same_again_and_goes_on_from_its_checkpoint_bit_for_bit[host]",
        kept_by="execution/test_asynchronous.py::test_without_actors_the_same_seed_gives_the_same_bits",
        reason="a run on the host is repeated by default, and one on the device goes on from a checkpoint",
    ),
    Slow(
        "algorithms/test_cql_iql.py",
        "test_two_learner_actors_train_it[cql]",
        kept_by="execution/test_sources.py::"
        "test_two_learner_actors_learn_from_data_and_evaluate_on_it_as_one_learner_of_two_devices[host_data]",
        reason="learner actors read data in the same way, whatever they learn from it",
    ),
    Slow(
        "algorithms/marwil/test_marwil.py",
        "test_ppo_goes_on_from_what_bc_has_learned[of_all_modules]",
        kept_by="algorithms/marwil/test_marwil.py::test_ppo_goes_on_from_what_bc_has_learned[of_one]",
        reason="folders of all modules are loaded by tests of specs, and PPO goes on from one of them by default",
    ),
    Slow(
        "algorithms/test_actor_critic_golden.py",
        """
        test_forward_train[tqc-three_critics]
        test_losses_gradients_and_td_errors[tqc-three_critics]
        """,
        kept_by="algorithms/test_actor_critic_golden.py::test_losses_gradients_and_td_errors[tqc-two_critics]",
        reason="critics are an axis of one array, which has two entries by default",
    ),
    Slow(
        "examples/test_gtrxl.py",
        "test_it_goes_on_bit_for_bit_and_remembers_where_it_is_served",
        kept_by="examples/test_gtrxl.py::test_a_sequence_is_its_steps_one_by_one",
        reason="runs and programs of recurrent modules are tested with an LSTM by default, and this one by its steps",
    ),
    Slow(
        "execution/test_module_changes.py",
        "test_a_league_grows_by_a_callback",
        kept_by="examples/test_self_play.py::test_a_copy_of_main_joins_when_it_wins_and_plays_from_then_on",
        reason="a callback adds copies of a module by default, too",
    ),
    Slow(
        "execution/test_multi_agent.py",
        """
        test_steps_are_recorded_when_they_are_complete[cart_poles]
        test_steps_are_recorded_when_they_are_complete[rock_paper_scissors]
        """,
        kept_by="execution/test_multi_agent.py::test_steps_are_recorded_when_they_are_complete[come_and_go]",
        reason="agents that act together, in turns and not at all are recorded in two games by default",
    ),
    Slow(
        "execution/test_multi_agent.py",
        "test_a_policy_is_trained_against_one_that_learns_nothing[BeatLastHeuristicRLM]",
        kept_by="execution/test_multi_agent.py::"
        "test_a_policy_is_trained_against_one_that_learns_nothing[StatefulRandomRLModule]",
        reason="one that has a state learns nothing by default, and what opponents play has a test of its own",
    ),
    Slow(
        "acting/test_agents_episodes.py",
        "test_what_is_not_finite_is_said_to_be_of_its_agent[Keeps]",
        kept_by="acting/test_agents_episodes.py::test_what_is_not_finite_is_said_to_be_of_its_agent[RLlibCallback]",
        reason="numbers are looked at before callbacks see them, whatever these keep",
    ),
    Slow(
        "execution/test_finite_check.py",
        "test_choices_that_do_not_exist_end_the_iteration[several]",
        kept_by="execution/test_finite_check.py::test_choices_that_do_not_exist_end_the_iteration[one]",
        reason="a space of one choice is looked at by default",
    ),
    Slow(
        "execution/test_sources.py",
        "test_schedules_are_read_at_the_steps_of_training",
        kept_by="test_evaluation.py::test_traced_settings[CartPole-v1]",
        reason="an evaluation reads schedules at the steps of training by default, on either driver",
    ),
    Slow(
        "core/test_valid_rows.py",
        "test_a_module_without_a_valid_row_stays_as_it_is[1-None]",
        kept_by="core/test_valid_rows.py::test_a_module_without_a_valid_row_stays_as_it_is[2-4]",
        reason="two devices with minibatches, of which one has no valid row, include what one of them does",
    ),
    Slow(
        "core/test_row_independence.py",
        "test_rows_that_see_each_other_are_neither_split_nor_padded[16]",
        kept_by="core/test_row_independence.py::test_rows_that_see_each_other_are_neither_split_nor_padded[11]",
        reason="11 rows would be both split and padded, 16 only split",
    ),
    Slow(
        "test_lowering.py",
        "test_programs_of_the_device_lower[appo-2-devices]",
        kept_by="test_lowering.py::test_programs_of_the_device_lower[ppo-2-devices]",
        reason="programs of one on-policy and two off-policy algorithms are lowered by default",
    ),
    Slow(
        "compat/test_pipelines.py",
        "test_a_module_of_the_learner_alone_rewards_what_surprises_it[device]",
        kept_by="compat/test_pipelines.py::test_a_module_of_the_learner_alone_rewards_what_surprises_it[episodes]",
        reason="what the learner alone has is not on the way from the environments to it",
    ),
    Slow(
        "env/test_jax_env.py",
        """
        test_gymnax_envs_can_be_trained_on[CartPole-v1]
        test_gymnax_envs_can_be_trained_on[Pendulum-v1]
        """,
        kept_by="env/test_jax_env.py::test_gymnax_envs_can_be_trained_on[Breakout-MinAtar]",
        reason="these two environments are trained on in many other files",
    ),
    Slow(
        "env/test_jax_env.py",
        "test_steps_equal_gymnaxs_own[CartPole-v1-env_config0]",
        kept_by="env/test_jax_env.py::test_steps_equal_gymnaxs_own[Pendulum-v1-env_config1]",
        reason="observations of numbers are compared with gymnax's in one environment by default",
    ),
    Slow(
        "test_probes.py",
        "test_discrete_sac_learns_the_known_values[ActionRewardProbe]",
        kept_by="test_probes.py::test_dqn_learns_the_known_values[ActionRewardProbe]",
        reason="actions are learned from replay with DQN by default, and SAC's losses are compared with RLlib's",
    ),
    Slow(
        "test_images.py",
        "test_bytes_are_kept_as_bytes_and_large_numbers_beside_them_as_numbers[DQNConfig-blinking-False]",
        kept_by="test_images.py::"
        "test_bytes_are_kept_as_bytes_and_large_numbers_beside_them_as_numbers[DQNConfig-blinking-host-False]",
        reason="the device keeps bytes for PPO by default, and DQN has them in its memory on the host",
    ),
    Slow(
        "test_evaluation.py",
        "test_results_have_the_numbers_of_agents_modules_and_throughputs[device-agents]",
        kept_by="test_evaluation.py::test_results_have_the_numbers_of_agents_modules_and_throughputs[host-agents]",
        reason="agents are counted on the host by default, and on the device by the tests of several agents",
    ),
    Slow(
        "test_evaluation.py",
        "test_statistics_of_training_find_their_connector_by_name[host]",
        kept_by="test_actor_driver.py::test_a_filter_learns_from_training_only_and_evaluation_starts_from_it",
        reason="evaluation on the host starts from statistics of training by default, and on the device by their names",
    ),
    Slow(
        "test_evaluation.py",
        "test_every_algorithm_acts_in_a_gymnasium_environment_without_what_only_training_needs[DreamerV3]",
        kept_by="test_evaluation.py::"
        "test_inference_only_modules_have_what_acting_needs_and_nothing_else[DreamerV3-discrete-False]",
        reason="what DreamerV3 needs to act is known by default, and the other algorithms act with theirs",
    ),
    Slow(
        "test_cli.py",
        "test_a_sweep_goes_over_numbers_of_the_environment",
        kept_by="runs/test_run_sweep.py::test_the_best_config_has_the_best_entry_of_env_config",
        reason="sweeps over env_config are run by default, and the command with other settings",
    ),
    Slow(
        "test_docs.py",
        "test_what_is_subclassed_runs_as_the_page_shows_it",
        kept_by="compat/test_algorithms_and_losses.py::test_a_term_of_ones_own_in_the_loss_of_every_algorithm[ppo]",
        reason="subclasses of learners, runners and modules train in the tests of each; a tutorial is run by default",
    ),
    Slow(
        "tune/test_trainables.py",
        "test_a_trial_of_several_policies_reports_and_keeps_each_of_them",
        kept_by="execution/test_multi_agent.py::test_a_run_goes_on_from_its_checkpoint_bit_for_bit",
        reason="a trial saves and reports what its algorithm does, of which several policies go on by default",
    ),
    Slow(
        "test_bench.py",
        "test_both_drivers_learning_curves_are_compared",
        kept_by="test_bench.py::test_learning_knows_the_criteria_of_every_algorithm",
        reason="curves of both drivers are judged by default; this compares their areas",
    ),
    Slow(
        "test_evaluation.py",
        "test_results_keep_the_last_evaluation_and_the_config[gymnax/CartPole-v1]",
        kept_by="test_evaluation.py::test_results_keep_the_last_evaluation_and_the_config[CartPole-v1]",
        reason="algorithms keep evaluations in their results, whoever evaluates",
    ),
    Slow(
        "execution/test_population.py",
        "test_members_begin_differently_and_learn_with_their_own_settings",
        kept_by="execution/test_population.py::test_each_member_is_the_run_that_it_would_be_alone[DQN_prioritised_masks]",
        reason="members of other seeds and settings are compared with runs alone by default",
    ),
    Slow(
        "replay/test_replay_items.py",
        """
        test_windows_on_the_device_are_consecutive_items_over_ends_of_episodes[None-1]
        test_windows_on_the_device_are_consecutive_items_over_ends_of_episodes[8-1]
        """,
        kept_by="replay/test_replay_items.py::"
        "test_windows_on_the_device_are_consecutive_items_over_ends_of_episodes[8-3]",
        reason="both ways to keep final observations are drawn from with stacked frames by default",
    ),
    Slow(
        "ops/test_chunking.py",
        """
        test_means_of_rows_have_the_gradient_of_all_rows[12-True]
        test_means_of_rows_have_the_gradient_of_all_rows[4-False]
        """,
        kept_by="ops/test_chunking.py::test_means_of_rows_have_the_gradient_of_all_rows[10-True]",
        reason="one number of rows is split, into chunks that differ, and one is not by default",
    ),
    Slow(
        "core/test_learner_updates.py",
        """
        test_padding_changes_nothing[one shard-120]
        test_padding_changes_nothing[one shard-21]
        test_padding_changes_nothing[four shards-120]
        test_padding_changes_nothing[four shards-97]
        """,
        kept_by="core/test_learner_updates.py::test_padding_changes_nothing[four shards-21]",
        reason="two numbers of rows, which divide by none of the sizes, are padded in each number of shards by default",
    ),
    Slow(
        "test_algorithm.py",
        "test_rewards_are_clipped_where_the_learner_reads_them[complete_episodes-2.5]",
        kept_by="test_algorithm.py::test_rewards_are_clipped_where_the_learner_reads_them[host_connector-True]",
        reason="rewards of blocks and of episodes are clipped by default",
    ),
    Slow(
        "algorithms/test_offline_golden.py",
        """
        test_forward_pass_losses_and_gradients[cql-one_critic]
        test_forward_pass_losses_and_gradients[iql-one_critic]
        """,
        kept_by="algorithms/test_actor_critic_golden.py::test_losses_gradients_and_td_errors[sac-box_one_critic]",
        reason="one critic is compared with RLlib's by default, whose losses these algorithms add to",
    ),
    Slow(
        "test_action_masks.py",
        "test_no_masked_action_is_ever_chosen[DQNConfig-legal-settings3-4]",
        kept_by="test_action_masks.py::"
        "test_no_masked_action_is_ever_chosen_behind_connectors[DQNConfig-legal-host-model2]",
        reason="PPO's masks on the device and DQN's on the host are obeyed by default; members of DQN train with them",
    ),
    Slow(
        "acting/test_agents_episodes.py",
        "test_running_episodes_go_on_from_a_checkpoint",
        kept_by="execution/test_multi_agent.py::test_a_run_goes_on_from_its_checkpoint_bit_for_bit",
        reason="a run of several agents goes on in the middle of its episodes by default, and has the returns of these",
    ),
    Slow(
        "algorithms/test_cql_iql.py",
        "test_sac_continues_with_the_data_beside_fresh_experience[cql]",
        kept_by="algorithms/marwil/test_marwil.py::test_ppo_goes_on_from_what_bc_has_learned[of_one]",
        reason="PPO begins with a stored module by default, and DQN with recorded steps in its memory",
    ),
    Slow(
        "execution/test_multi_agent_probes.py",
        "test_two_policies_learn_the_known_values[ArrivalProbe-True]",
        kept_by="execution/test_multi_agent_two_drivers.py::"
        "test_the_same_steps_make_the_same_update[ComeAndGo-ComeAndGo-networks1-True]",
        reason="agents that come late make the same update on both drivers by default, and other probes are learned",
    ),
    Slow(
        "env/test_multi_agent_env_runner.py",
        "test_a_module_without_steps_is_not_updated_although_no_other_is_trained[episodes]",
        kept_by="env/test_multi_agent_env_runner.py::"
        "test_a_module_without_steps_is_not_updated_although_no_other_is_trained[blocks]",
        reason="episodes make the same update as blocks, which another test keeps",
    ),
    Slow(
        "core/test_valid_rows.py",
        "test_devices_make_as_many_steps_as_the_one_with_the_most_rows[False]",
        kept_by="core/test_valid_rows.py::test_devices_make_as_many_steps_as_the_one_with_the_most_rows[True]",
        reason="rows are shuffled by default, and steps are counted before that",
    ),
    Slow(
        "connectors/test_action_noise.py",
        "test_colored_noise_has_its_spectrum_from_the_first_step_of_an_episode[0.5]",
        kept_by="connectors/test_action_noise.py::"
        "test_colored_noise_has_its_spectrum_from_the_first_step_of_an_episode[1.5]",
        reason="one slope of the spectrum is measured by default",
    ),
    Slow(
        "algorithms/tqc/test_tqc_learner.py",
        "test_the_highest_quantiles_are_dropped[2]",
        kept_by="algorithms/tqc/test_tqc_learner.py::test_the_highest_quantiles_are_dropped[4]",
        reason="none and four of five quantiles are dropped by default",
    ),
    Slow(
        "test_memory_envs.py",
        "test_no_policy_without_memory_beats_the_bound_and_one_with_memory_is_perfect[env0-2-0.5-<lambda>]",
        kept_by="test_memory_envs.py::"
        "test_no_policy_without_memory_beats_the_bound_and_one_with_memory_is_perfect[env1-3-0.5-<lambda>]",
        reason="the same environment has three symbols, and asks in every step, by default",
    ),
    Slow(
        "env/test_jax_env.py",
        """
        test_every_gymnax_env_keeps_its_spaces[CartPole-v1]
        test_every_gymnax_env_keeps_its_spaces[Pendulum-v1]
        """,
        kept_by="env/test_jax_env.py::test_every_gymnax_env_keeps_its_spaces[DeepSea-bsuite]",
        reason="these two environments are trained on in many other files",
    ),
    Slow(
        "connectors/test_connectors_of_agents.py",
        "test_a_central_critic_trains_in_one_program",
        kept_by="core/test_rows_of_agents.py::"
        "test_minibatches_have_all_agents_of_a_step_if_they_divide_by_them[24-2-3.0]",
        reason="the same module trains on rows of all agents by default",
    ),
    Slow(
        "test_docs.py",
        "test_the_examples_of_progress_run",
        kept_by="runs/test_learn.py::test_it_trains_until_the_first_goal_is_reached",
        reason="the page trains until a goal, as this test does, and shows the lines of the tests of progress",
    ),
    Slow(
        "core/test_learner_updates.py",
        """
        test_episodes_are_rows_and_their_numbers_compile_nothing[2]
        test_another_number_of_rows_compiles_nothing[four shards]
        test_padding_changes_nothing_without_minibatches[four shards]
        """,
        kept_by="core/test_learner_updates.py::test_another_number_of_rows_compiles_nothing[one shard]",
        reason="each of these tests runs with one device or shard by default, and padding with four",
    ),
    Slow(
        "test_observation_keys.py",
        "test_impala_and_appo_train_with_different_keys[IMPALAConfig]",
        kept_by="test_observation_keys.py::test_impala_and_appo_train_with_different_keys[APPOConfig]",
        reason="IMPALA's networks are PPO's, which train with different keys by default, too",
    ),
    Slow(
        "execution/test_replays_of_modules.py",
        "test_a_restored_run_continues_bit_for_bit[MultiAgentEpisodeReplayBuffer]",
        kept_by="execution/test_replays_of_modules.py::"
        "test_a_restored_run_continues_bit_for_bit[MultiAgentPrioritizedEpisodeReplayBuffer]",
        reason="a memory with priorities has all that one without them has, and the priorities",
    ),
    Slow(
        "execution/test_multi_agent.py",
        "test_drivers_agree_on_steps_in_which_nobody_acts[visits1]",
        kept_by="execution/test_multi_agent.py::test_drivers_agree_on_steps_in_which_nobody_acts[visits0]",
        reason="both agents have ended before the episode in the default case, too, which begins without any",
    ),
    Slow(
        "execution/test_replay_of_agents.py",
        "test_learning_starts_after_steps_in_the_unit_that_is_counted[env_steps-expected0-device]",
        kept_by="execution/test_replay_of_agents.py::"
        "test_learning_starts_after_steps_in_the_unit_that_is_counted[agent_steps-expected1-device]",
        reason="each driver counts the steps of agents by default, and those of environments on the host",
    ),
    Slow(
        "algorithms/test_updates_of_several_modules.py",
        """
        test_modules_learn_what_they_learn_alone[tqc]
        test_a_module_without_rows_stays_as_it_is[tqc]
        """,
        kept_by="algorithms/test_updates_of_several_modules.py::test_modules_learn_what_they_learn_alone[sac]",
        reason="TQC's learner is SAC's with other critics, and DQN's and SAC's are compared by default",
    ),
    Slow(
        "execution/test_multi_agent_probes.py",
        "test_replay_learns_the_known_values[SACConfig-OneIsCutOffProbe-False-False]",
        kept_by="execution/test_multi_agent_probes.py::"
        "test_replay_learns_the_known_values[SACConfig-ArrivalProbe-False-True]",
        reason="of the agents of that probe one is cut off, too, and one terminated; DQN learns this probe's values",
    ),
    Slow(
        "tune/test_registration.py",
        """
        test_the_name_means_this_packages_class_in_every_order_of_imports[config, tune]
        test_the_name_means_this_packages_class_in_every_order_of_imports[in a function]
        """,
        kept_by="tune/test_registration.py::test_the_name_survives_what_unregisters_or_takes_it",
        reason="Tune is imported behind the package there, too, and before it in the default case",
    ),
    Slow(
        "execution/test_declared_columns.py",
        """
        test_a_column_of_a_connector_arrives_in_the_loss[ppo-HintPPO-gymnax/CartPole-v1]
        test_a_column_of_a_connector_arrives_in_the_loss[dqn-HintDQN-CartPole-v1]
        """,
        kept_by="execution/test_declared_columns.py::"
        "test_a_column_of_a_connector_arrives_in_the_loss[dqn-HintDQN-gymnax/CartPole-v1]",
        reason="each algorithm and each place runs once by default, PPO on the host and DQN on the device",
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
        "test_gpu_kit.py",
        "test_the_toy_sizes_write_a_line_for_each_part",
        kept_by="test_gpu_kit.py::test_a_part_needs_neither_ray_nor_gymnax_nor_flashbax",
        reason="the kit runs one part by default, in the same processes; the others are other algorithms",
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
    # --------------------------------------------------------------------------------- kills, soaks, and second actors
    Slow(
        "checkpoints/test_kills.py",
        "test_kills[steps]",
        kept_by="checkpoints/test_kills.py::test_kills[exchange]",
        reason="where files are not exchanged at once, each step is interrupted by test_other_file_systems_interrupted",
    ),
    Slow(
        "test_memory.py",
        """
        test_memory_stays_flat_in_training[CartPole-v1]
        test_memory_stays_flat_in_training_from_replay[gymnax/CartPole-v1]
        test_memory_stays_flat_in_saving[CartPole-v1]
        test_an_algorithm_without_references_is_gone_with_its_programs[gymnax/CartPole-v1]
        """,
        kept_by="test_memory.py::test_memory_stays_flat_in_training[gymnax/CartPole-v1]",
        reason="each driver is repeated in two of these tests by default, and each test with one driver",
    ),
    Slow(
        "execution/test_asynchronous.py",
        "test_training_survives_whoever_is_killed[learners0]",
        kept_by="execution/test_asynchronous.py::test_training_survives_whoever_is_killed[learners1]",
        reason="runners, a learner and an aggregator are killed together by default",
    ),
    Slow(
        "execution/test_asynchronous.py",
        "test_runners_sample_while_learners_learn[IMPALAConfig-learners0-False]",
        kept_by="execution/test_asynchronous.py::test_runners_sample_while_learners_learn[IMPALAConfig-learners1-True]",
        reason="a learner of this process learns beside runners in the other tests of the file",
    ),
    Slow(
        "env/test_multi_agent_actors.py",
        "test_two_actors_sample_and_one_that_dies_comes_back",
        kept_by="env/test_env_runners_on_ray.py::test_training_goes_on_when_processes_die_and_counts_everything_once",
        reason="a runner that dies comes back in the same group of actors, whatever its runners sample",
    ),
    Slow(
        "env/test_multi_agent_actors.py",
        "test_an_environment_that_raises_is_made_anew[1]",
        kept_by="env/test_multi_agent_actors.py::test_an_environment_that_raises_is_made_anew[0]",
        reason="the environment is made anew in this process by default",
    ),
    Slow(
        "env/test_multi_agent_actors.py",
        "test_two_learners_are_actors",
        kept_by="env/test_multi_agent_actors.py::test_a_learner_is_an_actor",
        reason="one learner is an actor by default, and two learners that are actors have tests of their own",
    ),
    Slow(
        "env/test_env_runners_on_ray.py",
        "test_failures_in_a_row_are_counted_and_the_first_one_is_not_tolerated_at_all",
        kept_by="env/test_env_runner_losses.py::"
        "test_failures_in_a_row_are_counted_and_the_first_one_is_not_tolerated_at_all",
        reason="failures are counted without processes by default, of training and of evaluation",
    ),
    Slow(
        "env/test_env_runners_on_ray.py",
        "test_a_slow_restart_is_waited_for_with_lines_in_the_log",
        kept_by="env/test_env_runner_losses.py::test_a_slow_restart_is_waited_for_with_lines_in_the_log",
        reason="time and lines of the log are those of a clock that does not run by itself by default",
    ),
    Slow(
        "core/test_learner_group.py",
        "test_a_killed_learner",
        kept_by="execution/test_asynchronous.py::test_training_survives_whoever_is_killed[learners1]",
        reason="a learner is killed and comes back beside runners by default",
    ),
    Slow(
        "offline/test_offline_evaluation_losses.py",
        "test_one_that_stalls_is_not_waited_for_and_one_that_dies_is_left_out",
        kept_by="offline/test_offline_evaluation_actors.py::"
        "test_one_that_stalls_is_not_waited_for_and_one_that_dies_is_left_out",
        reason="an actor stalls and dies without a process by default; processes of these evaluations are killed, too",
    ),
    Slow(
        "execution/test_offline_step.py",
        "test_two_learner_actors_learn_from_every_step_once[resident]",
        kept_by="execution/test_sources.py::"
        "test_two_learner_actors_learn_from_data_and_evaluate_on_it_as_one_learner_of_two_devices[host_data]",
        reason="two actors make the updates of one learner of two devices by default, which sees every step once",
    ),
    Slow(
        "test_joined_driver.py",
        "test_a_run_with_learner_actors_is_evaluated_in_another_environment",
        kept_by="execution/test_sources.py::test_what_learner_actors_learn_is_evaluated_in_this_process",
        reason="what a learner actor has learned is saved, restored and evaluated in another environment by default",
    ),
    Slow(
        "test_joined_driver.py",
        "test_actors_refuse_what_one_process_refuses",
        kept_by="test_joined_processes.py::test_every_process_hears_what_joined_processes_cannot_do",
        reason="joined actors are joined processes, which refuse the same by default",
    ),
    Slow(
        "test_actor_driver.py",
        "test_several_blocks_of_one_runner_count_in_its_filter_once",
        kept_by="env/test_env_runner_group.py::test_no_observation_is_counted_twice",
        reason="two runners with two blocks each count every observation once by default",
    ),
    Slow(
        "compat/test_hooks.py",
        "test_they_are_in_an_actor",
        kept_by="compat/test_hooks.py::"
        "test_overridden_hooks_are_called_and_super_does_what_the_algorithm_does[CartPole-v1]",
        reason="hooks are called in this process by default, and learner actors make the updates of learners here",
    ),
    Slow(
        "tune/test_tuner.py",
        "test_an_interrupted_run_goes_on_from_its_last_checkpoint",
        kept_by="tune/test_trainables.py::test_a_reused_trial_goes_on_from_a_checkpoint_with_its_new_settings",
        reason="a trial goes on from a checkpoint by default; which of them it is given is Tune's",
    ),
    Slow(
        "execution/test_training_steps.py",
        "test_a_step_that_learns_late_runs_on_two_runners_of_which_one_is_slow",
        kept_by="execution/test_training_steps.py::"
        "test_it_runs_unchanged_on_both_places_and_drops_what_is_too_old[CartPole-v1]",
        reason="the step drops what is too old in this process by default; a slow actor has tests of groups",
    ),
    Slow(
        "tune/test_tuner.py",
        "test_successive_halving_stops_trials_and_reuses_their_processes",
        kept_by="tune/test_trainables.py::test_a_reused_trial_is_a_new_one_without_a_compilation",
        reason="a trial that takes another one's process is tested without a scheduler",
    ),
    Slow(
        "tune/test_tuner.py",
        "test_population_based_training_changes_traced_settings_without_compiling",
        kept_by="tune/test_trainables.py::test_a_reused_trial_goes_on_from_a_checkpoint_with_its_new_settings",
        reason="a trial that goes on from another one's checkpoint with new settings is tested without a scheduler",
    ),
)
"""Repetitions of promises that the default set keeps; `.ci/run` runs them, and so does ``-m slow``."""


def is_slow(test: str, listed: tuple[Slow, ...] = SLOW) -> bool:
    """Tell if ``file::name`` is a test, a case of a test, or in a class or file, that is listed."""
    return _is_among(test, _slow_names(listed))


def _is_among(test: str, names: frozenset[str] | set[str]) -> bool:
    parts = test.partition("[")[0].split("::")
    return test in names or any("::".join(parts[: i + 1]) in names for i in range(len(parts)))


@functools.cache
def _slow_names(listed: tuple[Slow, ...]) -> frozenset[str]:
    return frozenset(name for slow in listed for name in slow.tests() or [slow.file])


def marks_of(test: str, fixtures: Iterable[str], code: Iterable[Any]) -> set[str]:
    """Marks of a test; "fast" if it has no other.

    Args:
        test: Its ``file::name``, the file relative to this folder.
        fixtures: Names of all fixtures that it uses.
        code: Its function, those of its fixtures, and its parameters.
    """
    fixtures = set(fixtures)
    names = set().union(*map(names_below, reachable(code)))
    marks = {mark for mark, listed in LISTED.items() if _is_among(test, listed)}
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
        yield from thing if _holds_more_than_plain_things(thing) else ()
    elif isinstance(thing, dict):
        yield from thing.values() if _holds_more_than_plain_things(thing.values()) else ()
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


def _holds_more_than_plain_things(things: Iterable[Any]) -> bool:
    return not PLAIN.issuperset(map(type, things))


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
