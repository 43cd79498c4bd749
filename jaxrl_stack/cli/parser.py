"""Definitions of the options of all ``jaxrl`` commands."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jaxrl_stack.checkpoints.newest import newest_checkpoint
from jaxrl_stack.cli.new import KINDS

_EXAMPLES = """\
examples:
  jaxrl train PPO gymnax/CartPole-v1 --stop '{"env_runners/episode_return_mean": 475}'
  jaxrl sweep PPO gymnax/CartPole-v1 --set lr=1e-3,3e-3 --seeds 3 --num-iterations 30
  jaxrl benchmark PPO,IMPALA 'gymnax/*-MinAtar' --seeds 5 --steps 5e6 --results-dir results/minatar
  jaxrl evaluate results/RUN --episodes 100
  jaxrl plot results/RUN
  jaxrl video results/RUN
  jaxrl report results/RUN
  jaxrl rewind results/RUN --to 41
  jaxrl verify results/RUN
  jaxrl diff results/RUN_A results/RUN_B
  jaxrl inspect results/RUN --iteration 41
  jaxrl record results/RUN --episodes 500 --out data/cartpole
  jaxrl data data/cartpole
  jaxrl new env MyMaze
  jaxrl migrate my_rllib_script.py

Each command has its own help: jaxrl train --help
"""

_TRAIN_EXAMPLES = """\
Settings: without --config and a file, the algorithm's tuned settings for the environment are used, if there are any
(the first lines of the output show them), else the algorithm's defaults. --set changes one setting; its value is JSON
or Python, or text if it is neither. NAME.INNER is an entry of a dict: env_config.length

Stop criteria are paths in the result with values; training stops when one value is reached. Examples:
  '{"env_runners/episode_return_mean": 475, "num_env_steps_sampled_lifetime": 1000000}'
  '{"training_iteration": 100}'  '{"time_total_s": 60}'  '{"evaluation/env_runners/episode_return_mean": 475}'
Without stop criteria, training continues until Ctrl-C.

Ctrl-C stops after the running iteration and keeps the last state in a checkpoint; a second Ctrl-C aborts. Continue with
  jaxrl train --restore results/RUN           or results/RUN@35, its iteration 35
This writes a new directory of results; counts of iterations, steps and time continue. A gymnasium environment starts
new episodes.

A config file is either Python that defines `config` (an AlgorithmConfig) and optionally `stop` (a dict), or JSON
with any of the keys "algo", "env", "config" (an object of settings) and "stop". Options overrule the file.

examples:
  jaxrl train PPO gymnax/CartPole-v1 --stop '{"env_runners/episode_return_mean": 475}'
  jaxrl train ppo gymnax/CartPole-v1 --set lr=1e-3 --set model_config.fcnet_hiddens=[32,32] --num-iterations 20
  jaxrl train PPO gymnax/Acrobot-v1 --num-iterations 200 \\
      --config '{"lr": 0.001, "num_envs_per_env_runner": 64, "train_batch_size_per_learner": 8192}'
  jaxrl train file my_experiment.py --seed 3 --results-dir results/seed3
  jaxrl train PPO gymnax/CartPole-v1 --seeds 8 --num-iterations 30
  jaxrl train IMPALA CartPole-v1 --address auto --set num_env_runners=16 --set num_learners=1 --num-iterations 100

exit codes: 0 stopped by a criterion, 1 failed while training, 2 wrong input, 130 stopped by Ctrl-C
"""

_SWEEP_EXAMPLES = """\
Every combination of the values is trained with every seed, one run after the other. Where only numbers change, such as
learning rates, one compiled program serves all runs. The table at the end has the best combination first.

examples:
  jaxrl sweep PPO gymnax/CartPole-v1 --set lr=1e-3,3e-3 --set entropy_coeff=0,0.01 --seeds 3 --num-iterations 30
  jaxrl sweep SAC gymnax/Pendulum-v1 --set tau=0.005,0.02 --stop '{"num_env_steps_sampled_lifetime": 20000}' --out a.svg
  jaxrl sweep PPO gymnax/CartPole-v1 --set 'lr=loguniform(1e-5,1e-2)' --num-samples 64 --scheduler asha
  jaxrl plot results/sweep_PPO_gymnax-CartPole-v1_TIME --out curves.png
"""

_BENCHMARK_EXAMPLES = """\
Every algorithm is trained on every task with the same seeds. On a JAX environment the seeds are one program; other runs
follow one after the other, or in --jobs processes. ALGOS are names with tuned settings, or LABEL=FILE.py for the
`config` of a Python file. TASK is a name or a pattern in quotes: 'gymnax/*-MinAtar', 'brax/*', '*-v5'.

The same command continues after a kill or Ctrl-C. Other algorithms and tasks can be added to the same directory.

examples:
  jaxrl benchmark PPO,IMPALA 'gymnax/*-MinAtar' --seeds 5 --steps 5e6 --results-dir results/minatar
  jaxrl benchmark PPO,mine=my_experiment.py Hopper-v5 Walker2d-v5 --steps 1e6 --jobs 4 --results-dir results/mujoco
  jaxrl compare results/minatar --baseline PPO --format md
"""

_EVALUATE_EXAMPLES = """\
examples:
  jaxrl evaluate results/RUN
  jaxrl evaluate results/RUN/checkpoint_000031 --episodes 100 --no-explore --json
  jaxrl evaluate results/RUN --data data/cartpole --method wis --method dr
"""


_PLOT_EXAMPLES = """\
RUN is the directory of a run (of `jaxrl train`, RLlib or Tune), a directory of many runs, or a progress.csv. Runs that
differ only in their seed are drawn as one line with a band around it.

examples:
  jaxrl plot results/RUN
  jaxrl plot results/* --key learners/default_policy/entropy --x seconds
  jaxrl plot results --out curves.svg
  jaxrl plot results --key learners/default_policy/vf_loss --yscale log --out loss.png
  jaxrl compare results/PPO_* ~/ray_results/PPO_2026-01-01 --out both.png
  jaxrl compare results/minatar --baseline PPO --format md    # a directory of `jaxrl benchmark`
"""

_VIDEO_EXAMPLES = """\
examples:
  jaxrl video results/RUN
  jaxrl video results/RUN/checkpoint_000031 --out cartpole.gif --episodes 1
"""

_RECORD_EXAMPLES = """\
By default, the files are Parquet, with one row per step, and after each episode one row with its last observation.
offline_data(input_=...) and all tools for tables read them.

examples:
  jaxrl record results/RUN --episodes 500 --out data/cartpole
  jaxrl record results/RUN/checkpoint_000003 --episodes 500 --explore --epsilon 0.3 --out data/cartpole
  jaxrl data data/cartpole
"""

_DATA_EXAMPLES = """\
PATH is a file of recorded steps, a folder of such files, or a glob, as offline_data(input_=...) takes.

examples:
  jaxrl data data/cartpole
  jaxrl data data/cartpole --out cartpole.png
  jaxrl data data/cartpole --json
  jaxrl data others.parquet --input-read-schema obs=state --input-read-schema actions=move
"""

_REPORT_EXAMPLES = """\
The page needs no server and no network: curves, video, settings, versions, the command that repeats the run, possible
problems, and the time that each part took.

examples:
  jaxrl report results/RUN
  jaxrl report results/PPO_* --out seeds.html
"""

_INSPECT_EXAMPLES = """\
The iteration is run again, bit for bit, from the nearest checkpoint before it. A loss of a row is its share of the loss
of its minibatch: the mean over the rows is the loss.

examples:
  jaxrl inspect results/RUN --iteration 41
  jaxrl inspect results/RUN --iteration 41 --out iteration_41.html
  jaxrl inspect results/RUN --iteration 41 --rows 100 --format json
"""

_NEW_EXAMPLES = """\
examples:
  jaxrl new env MyMaze       # my_maze.py: an environment in JAX
  jaxrl new module MyModule  # my_module.py: a network
  jaxrl new algo MyPPO       # my_ppo.py: a loss and a setting of one's own
  jaxrl train file my_maze.py
"""

_MIGRATE_EXAMPLES = """\
A script is parsed and never run. Comments, order and layout stay; uncertain code gets a comment `# TODO(jaxrl):`,
and the report lists these lines.

examples:
  jaxrl migrate train.py              # the diff
  jaxrl migrate train.py > my.patch   # to apply with `patch -p1`; the report stays in the terminal
  jaxrl migrate --write *.py          # writes them, and keeps train.py.bak
"""

_COMPLETION_EXAMPLES = """\
examples:
  eval "$(jaxrl completion bash)"        # in ~/.bashrc
  eval "$(jaxrl completion zsh)"         # in ~/.zshrc
  jaxrl completion fish | source         # in ~/.config/fish/config.fish
"""

_TOURNAMENT_EXAMPLES = """\
examples:
  jaxrl tournament results/RUN_A results/RUN_B random --games 400
  jaxrl tournament results/RUN/checkpoint_000010 results/RUN/checkpoint_000100 --out elo.html
"""

_PLAY_EXAMPLES = """\
examples:
  jaxrl play results/RUN
  jaxrl play results/RUN/checkpoint_000100 --seat second --explore
"""

_FORMATS = ("text", "md", "html", "latex", "json")
_REWIND_EXAMPLES = """\
Repeats iterations from the nearest stored checkpoint, or from the beginning of the run, bit for bit. The folder of the
run gets one more checkpoint and is otherwise not changed.

examples:
  jaxrl rewind results/RUN --to 41          # results/RUN/checkpoint_000041
  jaxrl evaluate results/RUN@41             # the same, and evaluates it
  jaxrl train --restore results/RUN@35 --set lr=1e-4 --num-iterations 20
"""

_VERIFY_EXAMPLES = """\
Checks the checksums of the run's files, repeats its iterations and compares them with what was recorded: the
fingerprint of the parameters of each iteration, and the whole state where a checkpoint is stored.

examples:
  jaxrl verify results/RUN
  jaxrl verify results/RUN --from 30 --to 40

exit codes: 0 equal, 1 different or changed, 2 wrong input, 3 not comparable on this machine
"""

_DIFF_EXAMPLES = """\
Finds the first iteration in which two runs differ, by the fingerprints of their parameters. Then repeats it in both,
and names the first leaf of the training state that differs.

examples:
  jaxrl diff results/RUN_A results/RUN_B

exit codes: 0 equal, 1 different, 2 wrong input
"""

_CHECKPOINT = "checkpoint; directory of a run (its newest checkpoint); or RUN@35 (iteration 35 of the run)"


class _Parser(argparse.ArgumentParser):
    """Argument parser that prints errors on one line, without usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _positive(text: str) -> int:
    number = int(text)  # argparse turns its ValueError into "invalid ... value"
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least 1")
    return number


def _share_or_all(text: str) -> float:
    number = float(text)
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 0 to 1")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0.0 < number < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and below 1")
    return number


def _steps(text: str) -> int:
    number = float(text)
    if not (number >= 1.0 and number.is_integer()):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1, such as 5e6")
    return int(number)


def _number_to_keep(text: str) -> int | str:
    if text == "sparse":
        return text
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least 1, or 'sparse'")


# What argparse calls them: "invalid integer value: 'x'".
_positive.__name__ = "integer"
_share.__name__ = _share_or_all.__name__ = _steps.__name__ = "number"


def what_is_unknown(argv: Sequence[str], arguments: argparse.Namespace, unknown: Sequence[str]) -> str:
    """Returns the error text for unknown words on the command line; if a word names a setting, the text tells how to
    set it.

    Args:
        argv: All words of the command.
        arguments: Parsed arguments.
        unknown: Words that no option takes.
    """
    plain = f"unrecognized arguments: {' '.join(unknown)}"
    option, sign, value = unknown[0].partition("=")
    if argv[0] != "train" or not option.startswith("--"):
        return plain
    after = argv[argv.index(unknown[0]) + 1 :]
    value = value if sign else next((word for word in after[:1] if not word.startswith("--")), "VALUE")
    from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_config_class
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

    algo = str(getattr(arguments, "algo", "")).upper()
    config = get_algorithm_config_class(algo if algo in ALGORITHMS else "PPO")()
    name = option.removeprefix("--").replace("-", "_")
    if name in _OTHER_OPTIONS:
        return f"{option} is no option: write {_OTHER_OPTIONS[name].format(value=value)}"
    if name in config:
        return f"{option} is a setting, no option: write --set {name}={value}"
    if name in DefaultModelConfig.__dataclass_fields__:
        return f"{option} is a setting of the network, no option: write --set model_config.{name}={value}"
    hint = config.suggestion(name)
    return f"{option} is no option.{hint} Settings are changed with --set NAME=VALUE" if hint else plain


_OTHER_OPTIONS = {
    **dict.fromkeys(("env_id", "env_name", "task"), "--env {value}"),
    **dict.fromkeys(
        ("total_timesteps", "timesteps", "num_timesteps", "stop_timesteps"),
        "--stop '{{\"num_env_steps_sampled_lifetime\": {value}}}'",
    ),
    "run": "--algo {value}",
}
"""Option of other packages' command lines -> what to write."""


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxrl",
        description="Reinforcement learning with RLlib's API, compiled by JAX.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    common = _Parser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    add = functools.partial(commands.add_parser, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[common])
    _add_train(add)
    _add_sweep(add)
    _add_benchmark(add)
    _add_evaluate(add)
    _add_pictures(add)
    _add_data(add)
    _add_games(add)
    _add_rewind(add)
    new = add(
        "new",
        help="write a program to start from",
        description="Writes a program to start from: an environment, a network or an algorithm. It trains as written.",
        epilog=_NEW_EXAMPLES,
    )
    new.add_argument("kind", metavar="KIND", choices=tuple(KINDS), help=" or ".join(KINDS))
    new.add_argument("name", metavar="NAME", help="name of the class, which also names the file")
    listing = add("list", help="list algorithms and environments", description="Lists algorithms and environments.")
    listing.add_argument(
        "what", nargs="?", choices=("algorithms", "envs", "tuned"), help="only these (default: the first two)"
    )
    listing.add_argument(
        "--envs",
        metavar="SUITE",
        help="all environments of a suite, such as brax, with their spaces (creates each one)",
    )
    migrate = add(
        "migrate",
        help="rewrite scripts for RLlib",
        description="Prints the changes to scripts for RLlib as a unified diff, and the remaining tasks for you.",
        epilog=_MIGRATE_EXAMPLES,
    )
    migrate.add_argument("scripts", nargs="+", metavar="SCRIPT", help="a Python file")
    migrate.add_argument("--write", action="store_true", help="write the files, and keep the old ones as SCRIPT.bak")
    completion = add(
        "completion",
        help="complete commands in a shell",
        description="Prints shell code that completes commands, options, algorithms, environments and settings.",
        epilog=_COMPLETION_EXAMPLES,
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _add_experiment(command: _Parser) -> Any:
    """Adds the options that define the training; returns their group."""
    what = command.add_argument_group("what to train")
    names_of = {"algo": _algorithms, "env": _environments}
    # Without a word here, the option's value stays.
    for name, metavar, example in (("algo", "ALGO", "PPO"), ("env", "ENV", "gymnax/CartPole-v1")):
        listed = {"algo": "algorithms", "env": "envs"}[name]
        word = what.add_argument(
            name,
            nargs="?",
            metavar=metavar,
            default=argparse.SUPPRESS,
            help=f"such as {example} (`jaxrl list {listed}`)",
        )
        option = what.add_argument(f"--{name}", metavar=metavar, help=f"the same as {metavar}")
        _complete(names_of[name], word, option)
    change = what.add_argument(
        "--set",
        dest="assignments",
        action="append",
        metavar="NAME=VALUE",
        help="change one setting (lr=1e-3, env_config.length=3); may be given again; "
        "`jaxrl sweep` takes several values (lr=1e-3,3e-3)",
    )
    _complete(_settings, change)
    what.add_argument("--config", metavar="JSON", help='settings by name: \'{"lr": 0.0003, "gamma": 0.99}\'')
    what.add_argument("--config-file", metavar="PATH", help="experiment in a .py or .json file (also: train file PATH)")
    return what


def _add_until(command: _Parser) -> Any:
    """Adds the options that define the end of a run; returns their group."""
    until = command.add_argument_group("when to stop")
    until.add_argument("--stop", metavar="JSON", help="stop criteria: path in the result → value")
    until.add_argument(
        "--num-iterations",
        "--max-iterations",
        type=_positive,
        metavar="N",
        help="stop after at most N iterations; with --restore RUN@35, after N more",
    )
    return until


def _add_train(add: Callable[..., _Parser]) -> None:
    train = add(
        "train",
        help="train an algorithm in an environment",
        usage="jaxrl train ALGO ENV [options]\n       jaxrl train file PATH [options]",
        description="Trains an algorithm and writes a directory of results, with a checkpoint at the end.",
        epilog=_TRAIN_EXAMPLES,
    )
    what = _add_experiment(train)
    what.add_argument(
        "--restore",
        metavar="CHECKPOINT",
        type=newest_checkpoint,
        help="continue from a checkpoint, or from the newest one in a run's directory, with its settings unless ALGO "
        "and ENV or a file give others",
    )
    what.add_argument("--seed", type=int, metavar="N", help="seed; the same seed gives the same run")
    what.add_argument(
        "--seeds",
        type=_positive,
        metavar="N",
        help="train N seeds (on a JAX environment in one program), each with a directory and without checkpoints; with "
        "--restore, all continue from that checkpoint",
    )
    what.add_argument("--evaluation-interval", type=_positive, metavar="N", help="evaluate every N iterations")
    until = _add_until(train)
    until.add_argument(
        "--plateau",
        metavar="JSON",
        help='stop when the return has not improved for a while: \'{"patience": 100000, "min_delta": 5}\' in '
        "environment steps; also metric, mode (max, min) and x (steps, iterations, seconds)",
    )
    results = train.add_argument_group("results")
    results.add_argument(
        "--results-dir", metavar="DIR", help="where to write (default: results/ALGO_ENV_TIME in the working directory)"
    )
    results.add_argument(
        "--checkpoint-freq", type=_positive, metavar="N", help="also write a checkpoint every N iterations"
    )
    results.add_argument(
        "--num-to-keep",
        type=_number_to_keep,
        metavar="N",
        help="keep the newest N checkpoints; sparse: the newest one, and older ones at doubling distances",
    )
    results.add_argument(
        "--keep-best",
        action="store_true",
        help="also keep the checkpoint with the best mean return (of evaluations, if any) in DIR/best",
    )
    results.add_argument(
        "--checkpoint-at-end",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="checkpoint of the last state (default: yes; Ctrl-C always writes one)",
    )
    cluster = train.add_argument_group("cluster")
    cluster.add_argument(
        "--address",
        metavar="ADDRESS",
        help="join a running Ray cluster: HOST:PORT of its head, or auto (RAY_ADDRESS, or the cluster of this machine)",
    )
    output = train.add_argument_group("output")
    output.add_argument("--quiet", action="store_true", help="print the closing lines only")
    output.add_argument(
        "--no-progress", action="store_true", help="plain lines instead of the live display (default if not a terminal)"
    )


def _add_sweep(add: Callable[..., _Parser]) -> None:
    sweep = add(
        "sweep",
        help="train every combination of some settings",
        usage="jaxrl sweep ALGO ENV --set NAME=VALUE,VALUE [options]",
        description="Trains every combination of some settings, each with several seeds.",
        epilog=_SWEEP_EXAMPLES,
    )
    _add_experiment(sweep)
    sweep.add_argument("--seeds", type=_positive, metavar="N", default=1, help="runs of each combination (default: 1)")
    sweep.add_argument(
        "--num-samples",
        type=_positive,
        metavar="N",
        default=1,
        help="samples of values such as lr=loguniform(1e-5,1e-2) (default: 1)",
    )
    sweep.add_argument(
        "--budget",
        metavar="AMOUNT",
        help="limit: train as many samples as fit, then the best three again with new seeds: '5 min', or "
        "'{\"num_env_steps_sampled_lifetime\": 2000000}' for all runs together",
    )
    _add_until(sweep)
    schedule = sweep.add_argument_group("scheduler")
    schedule.add_argument(
        "--scheduler",
        choices=("asha", "pbt"),
        help="asha: end the worst runs early (successive halving); pbt: replace the worst runs by changed copies of "
        "the best (population-based training)",
    )
    schedule.add_argument(
        "--grace-period",
        type=_positive,
        metavar="N",
        help="asha: iterations before the first runs end, or env steps or seconds if --stop has those (default: a "
        "sixteenth of a run)",
    )
    schedule.add_argument(
        "--perturbation-interval", type=_positive, metavar="N", help="pbt: iterations between copies (default: 5)"
    )
    sweep.add_argument("--results-dir", metavar="DIR", help="where to write (default: results/sweep_ALGO_ENV_TIME)")
    sweep.add_argument("--out", metavar="PATH", help="a figure of the curves, .png, .svg or .pdf")
    sweep.add_argument("--quiet", action="store_true", help="no line for each run")
    # What else an experiment may be given.
    sweep.set_defaults(restore=None, seed=None, evaluation_interval=None, plateau=None)


def _add_benchmark(add: Callable[..., _Parser]) -> None:
    benchmark = add(
        "benchmark",
        help="train algorithms on the same tasks and compare them",
        usage="jaxrl benchmark ALGOS TASK... --steps N --results-dir DIR [options]",
        description="Trains algorithms on the same tasks with the same seeds, and prints a table of scores.",
        epilog=_BENCHMARK_EXAMPLES,
    )
    names = benchmark.add_argument(
        "algorithms", metavar="ALGOS", help="such as PPO,IMPALA or PPO,mine=my_experiment.py"
    )
    tasks = benchmark.add_argument("tasks", nargs="+", metavar="TASK", help="environment, or a pattern in quotes")
    _complete(_algorithms, names)
    _complete(_environments, tasks)
    benchmark.add_argument("--seeds", type=_positive, metavar="N", default=5, help="runs of each (default: 5)")
    until = benchmark.add_argument_group("when to stop")
    until.add_argument("--steps", type=_steps, metavar="N", help="environment steps of each run, such as 5e6")
    until.add_argument("--stop", metavar="JSON", help="stop criteria: path in the result → value")
    benchmark.add_argument("--results-dir", metavar="DIR", required=True, help="where to write, and where to continue")
    benchmark.add_argument(
        "--score",
        choices=("evaluation", "curve"),
        default="evaluation",
        help="mean return of 100 evaluation episodes at the end of a run (default), or of the curve's last tenth",
    )
    benchmark.add_argument(
        "--checkpoint-seconds", type=float, metavar="S", default=300.0, help="time between checkpoints (default: 300)"
    )
    benchmark.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        default=1,
        help="processes for runs that are not one program (default: 1)",
    )
    benchmark.add_argument("--baseline", metavar="ALGO", help="add the probability that others score higher")
    benchmark.add_argument("--out", metavar="PATH", help="a figure of the curves, .png, .svg or .pdf")
    benchmark.add_argument("--quiet", action="store_true", help="print the table only")


def _add_evaluate(add: Callable[..., _Parser]) -> None:
    evaluate = add(
        "evaluate",
        help="evaluate a checkpoint",
        description="Evaluates a checkpoint, in an environment or on recorded episodes.",
        epilog=_EVALUATE_EXAMPLES,
    )
    evaluate.add_argument("checkpoint", metavar="CHECKPOINT", type=newest_checkpoint, help=_CHECKPOINT)
    evaluate.add_argument("--episodes", type=_positive, metavar="N", help="episodes to run (default: as configured)")
    _add_code(evaluate)
    _add_explore(evaluate, None, "draw actions from the policy, or take its best ones (default: as configured)")
    evaluate.add_argument("--seed", type=int, metavar="N", help="seed of the evaluation (default: as configured)")
    evaluate.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    data = evaluate.add_argument_group("on recorded episodes, without acting")
    data.add_argument("--data", nargs="+", metavar="PATH", help="recorded steps for an estimate of the policy's value")
    data.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="is, pdis, wis, dm or dr; may be given again (default: all that the policy supports)",
    )
    data.add_argument(
        "--gamma", type=float, metavar="X", help="discount (default: the checkpoint's, or 0.99 for a policy)"
    )
    data.add_argument("--epsilon", type=_share_or_all, metavar="X", help="probability of a random action in addition")
    data.add_argument("--module", metavar="NAME", help="module of the policy, if several are trained")
    _add_reading(evaluate)


def _add_data(add: Callable[..., _Parser]) -> None:
    record = add(
        "record",
        help="record episodes of a checkpoint",
        description="Runs episodes of a checkpoint's policy as an evaluation does, and records every step in files.",
        epilog=_RECORD_EXAMPLES,
    )
    record.add_argument("checkpoint", metavar="CHECKPOINT", type=newest_checkpoint, help=_CHECKPOINT)
    record.add_argument("--out", metavar="FOLDER", required=True, help="folder for the files")
    record.add_argument(
        "--episodes", type=_positive, metavar="N", default=100, help="episodes to record (default: 100)"
    )
    _add_explore(record, False, "draw actions from the policy, or take its best ones (default)")
    record.add_argument(
        "--epsilon",
        type=_share_or_all,
        metavar="P",
        default=0.0,
        help="share of the steps whose action is drawn from the action space instead (default: 0)",
    )
    record.add_argument("--num-envs", type=_positive, metavar="N", help="environments in parallel (default: 16)")
    record.add_argument("--seed", type=int, metavar="N", help="seed of the episodes (default: as configured)")
    record.add_argument("--infos", action="store_true", help="also record the environment's infos")
    record.add_argument(
        "--format", choices=("parquet", "rllib"), default="parquet", help="format of the files (default: parquet)"
    )
    _add_code(record)
    data = add(
        "data",
        help="print a summary of recorded steps",
        description="Prints a summary of recorded steps: environment, counts, returns, lengths and actions.",
        epilog=_DATA_EXAMPLES,
    )
    data.add_argument("paths", nargs="+", metavar="PATH", help="file, folder or glob")
    data.add_argument("--out", metavar="PATH", help="a figure of returns, lengths and actions, .png, .svg or .pdf")
    data.add_argument("--json", action="store_true", help="print the numbers as JSON and nothing else")
    _add_reading(data)


def _add_games(add: Callable[..., _Parser]) -> None:
    tournament = add(
        "tournament",
        help="let policies play games against each other",
        description="Plays games between the policies of checkpoints, in a JAX environment of two agents.",
        epilog=_TOURNAMENT_EXAMPLES,
    )
    tournament.add_argument(
        "checkpoints", nargs="+", metavar="CHECKPOINT", type=newest_checkpoint, help=f"{_CHECKPOINT}; or random"
    )
    tournament.add_argument(
        "--games", type=_positive, metavar="N", default=200, help="of each pair, half on each seat (default: 200)"
    )
    _add_explore(tournament, True, "draw actions from the policies (default), or take their best ones")
    tournament.add_argument("--format", choices=_FORMATS, default="text", help="of the table (default: text)")
    tournament.add_argument("--out", metavar="PATH", help="a page (.html) or a figure (.png, .svg, .pdf)")
    play = add(
        "play",
        help="play against a policy",
        description="Plays a game against a policy in the terminal; with one agent, an episode with its advice.",
        epilog=_PLAY_EXAMPLES,
    )
    play.add_argument("checkpoint", metavar="CHECKPOINT", type=newest_checkpoint, help=_CHECKPOINT)
    play.add_argument("--seat", choices=("first", "second"), help="your agent in a game of two (default: first)")
    _add_explore(play, False, "the policy draws its actions, or takes its best ones (default)")
    for command in (tournament, play):
        command.add_argument("--module", metavar="NAME", help="module that plays, if several are trained")
        command.add_argument("--seed", type=int, metavar="N", default=0, help="seed of the games (default: 0)")
        _add_code(command)


def _add_reading(command: _Parser) -> None:
    """Adds the options about reading recorded steps to a command; each option has the name of a setting of
    `AlgorithmConfig.offline_data`.
    """
    group = command.add_argument_group("how files of recorded steps are read, as offline_data() has it")
    group.add_argument(
        "--input-read-schema",
        action="append",
        metavar="COLUMN=NAME",
        help="name of a column in the files, such as obs=o; may be given again",
    )
    group.add_argument("--input-read-episodes", action="store_true", help="rows are packed episodes")
    group.add_argument("--input-read-sample-batches", action="store_true", help="rows are RLlib's old sample batches")
    group.add_argument(
        "--input-compress-columns",
        nargs="+",
        metavar="COLUMN",
        help="columns that may be packed (default: obs new_obs)",
    )
    group.add_argument(
        "--ignore-final-observation", action="store_true", help="do not read next observations; final ones are zeros"
    )


def _add_rewind(add: Callable[..., _Parser]) -> None:
    rewind = add(
        "rewind",
        help="recompute an iteration of a run",
        description="Writes the checkpoint of an iteration into the directory of a run.",
        epilog=_REWIND_EXAMPLES,
    )
    rewind.add_argument("run", metavar="RUN", help="directory of a run or of a population")
    rewind.add_argument("--to", type=_positive, metavar="N", required=True, help="the iteration")
    _add_code(rewind)
    verify = add(
        "verify",
        help="recompute a run and compare it with what was recorded",
        description="Recomputes iterations of a run and compares them with what was recorded.",
        epilog=_VERIFY_EXAMPLES,
    )
    verify.add_argument("run", metavar="RUN", help="directory of a run or of a population")
    verify.add_argument("--from", type=_positive, metavar="N", help="first iteration (default: the run's first)")
    verify.add_argument("--to", type=_positive, metavar="N", help="last iteration (default: the run's last)")
    _add_code(verify)
    diff = add(
        "diff",
        help="find the first difference of two runs",
        description="Finds the first iteration, and the first leaf of the training state, in which two runs differ.",
        epilog=_DIFF_EXAMPLES,
    )
    diff.add_argument("run", metavar="RUN_A", help="directory of a run")
    diff.add_argument("other", metavar="RUN_B", help="directory of another run")
    _add_code(diff)


def _add_explore(command: _Parser, default: bool | None, help: str) -> None:
    command.add_argument("--explore", action=argparse.BooleanOptionalAction, default=default, help=help)


def _add_code(command: _Parser) -> None:
    command.add_argument(
        "--env", metavar="ENV", help="another environment of the same spaces; the run's own, if that is module:Class"
    )
    command.add_argument(
        "--config-file", metavar="PATH", help="Python file with the run's `config`, if that holds functions or classes"
    )


def _add_pictures(add: Callable[..., _Parser]) -> None:
    for command, what in (("plot", "draw curves of runs"), ("compare", "compare how runs ended")):
        plot = add(command, help=what, description=f"{what.capitalize()}.", epilog=_PLOT_EXAMPLES)
        plot.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run or of many, or a progress.csv")
        plot.add_argument("--key", metavar="KEY", help="path in the result (default: the mean return)")
        plot.add_argument("--x", metavar="AXIS", help="steps (default), seconds, iterations, or a path")
        plot.add_argument("--aggregate", choices=("iqm", "mean", "median"), help="average over seeds (default: iqm)")
        plot.add_argument("--band", type=_share, metavar="P", help="confidence of the band (default: 0.95)")
        plot.add_argument("--out", metavar="PATH", help="a figure, .png, .svg or .pdf")
        plot.add_argument(
            "--ylim",
            nargs=2,
            type=float,
            metavar=("LOW", "HIGH"),
            help="limits of the figure's y axis (default: of the curves)",
        )
        for axis in ("x", "y"):
            plot.add_argument(
                f"--{axis}scale",
                choices=("linear", "log", "symlog"),
                help=f"the figure's {axis} axis (default: linear)",
            )
        if command == "compare":
            plot.add_argument("--format", choices=_FORMATS, default="text", help="format of the table")
            plot.add_argument(
                "--baseline", metavar="ALGO", help="of a benchmark: the probability that others are better"
            )
            plot.add_argument(
                "--references", metavar="FILE", help='of a benchmark: JSON of {"TASK": [low, high, "source"]}'
            )

    video = add(
        "video",
        help="film a checkpoint",
        description="Runs episodes of a checkpoint's policy as an evaluation does, and films them.",
        epilog=_VIDEO_EXAMPLES,
    )
    video.add_argument("checkpoint", metavar="CHECKPOINT", type=newest_checkpoint, help=_CHECKPOINT)
    video.add_argument("--out", metavar="PATH", help=".mp4, .webm or .gif (default: an .mp4 next to the checkpoint)")
    video.add_argument("--episodes", type=_positive, metavar="N", default=2, help="episodes to film (default: 2)")
    video.add_argument("--seed", type=int, metavar="N", default=0, help="seed of the episodes (default: 0)")
    video.add_argument("--against", metavar="PLAYER", help="rival in a game: a snapshot, a checkpoint or random")
    _add_code(video)
    report = add(
        "report",
        help="write a page about a run",
        description="Writes one HTML file about a run.",
        epilog=_REPORT_EXAMPLES,
    )
    report.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run, or of several seeds of it")
    report.add_argument("--out", metavar="PATH", help="the file (default: report.html in the run's directory)")
    inspect = add(
        "inspect",
        help="show losses, gradients and episodes of an iteration",
        description="Runs an iteration again, and shows losses and gradient norms of its minibatches and layers, its "
        "episodes, and the rows with the largest losses.",
        epilog=_INSPECT_EXAMPLES,
    )
    inspect.add_argument("run", metavar="RUN", help="directory of a run with checkpoints")
    inspect.add_argument("--iteration", type=_positive, metavar="N", required=True, help="number of the iteration")
    inspect.add_argument("--rows", type=_positive, metavar="N", default=20, help="rows to show (default: 20)")
    inspect.add_argument("--format", choices=("text", "json", "html"), help="(default: text, or the end of --out)")
    inspect.add_argument("--out", metavar="PATH", help="the file (default: the terminal)")
    _add_code(inspect)


def _complete(names: Callable[..., list[str]], *actions: argparse.Action) -> None:
    """Registers `names` as the completer of command-line arguments: for shell completion, `argcomplete` calls `names`,
    which returns the possible words.
    """
    for action in actions:
        action.completer = names  # type: ignore[attr-defined] - where argcomplete looks for it


def _algorithms(prefix: str, **kwargs: Any) -> list[str]:
    """Names of all algorithms, and the word ``file``, for shell completion; `argcomplete` filters this list by
    `prefix`.
    """
    from jaxrl_stack.algorithms.registry import ALGORITHMS

    return [*ALGORITHMS, "file"]


def _environments(prefix: str, **kwargs: Any) -> list[str]:
    from jaxrl_stack.env.jax_env import GYMNAX_PREFIX
    from jaxrl_stack.env.registry import GYMNAX_IDS

    return [GYMNAX_PREFIX + name for name in GYMNAX_IDS]


def _settings(prefix: str, parsed_args: argparse.Namespace, **kwargs: Any) -> list[str]:
    from jaxrl_stack.algorithms.registry import get_algorithm_config_class

    config = get_algorithm_config_class(getattr(parsed_args, "algo", None) or "PPO")()
    return [f"{name}=" for name in config.to_dict() if not name.startswith("_")]
