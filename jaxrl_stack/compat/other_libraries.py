"""Settings of SB3, CleanRL, PureJaxRL and gymnax, and their equivalents in this package."""

from __future__ import annotations

# fmt: off
_NAMES = {
    "clip_param": "clip_range clip_coef clip_eps",
    "entropy_coeff initial_alpha": "ent_coef",
    "env": "env_name env_id env_spec",
    "env_config": "env_params env_kwargs",
    "epsilon":
        "exploration_fraction exploration_initial_eps exploration_final_eps initial_epsilon final_epsilon start_e "
        "end_e epsilon_start epsilon_finish epsilon_anneal_time",
    "evaluation_duration": "n_eval_episodes num_eval_episodes eval_episodes",
    "evaluation_interval": "eval_freq eval_interval",
    "gamma": "discount discount_factor",
    "grad_clip": "max_grad_norm",
    "initial_alpha": "alpha autotune",
    "lambda_": "gae_lambda lam",
    "actor_lr critic_lr lr": "learning_rate",
    "actor_lr": "policy_lr",
    "critic_lr": "q_lr",
    "loggers": "track wandb wandb_project_name",
    "minibatch_size": "num_minibatches",
    "num_envs_per_env_runner": "n_envs num_envs",
    "num_epochs": "n_epochs update_epochs",
    "num_gpus_per_learner": "cuda device use_gpu",
    "num_steps_sampled_before_learning_starts": "warmup_steps",
    "rollout_fragment_length": "n_steps num_steps",
    "target_network_update_freq": "target_update_interval target_network_frequency",
    "train_batch_size_per_learner": "batch_size",
    "training_intensity": "gradient_steps train_freq train_frequency utd_ratio",
    "vf_clip_param": "clip_range_vf clip_vloss",
    "vf_loss_coeff": "vf_coef",
}
# fmt: on
SETTINGS = {theirs: ours.split() for ours, names in _NAMES.items() for theirs in names.split()}
"""Name in another library -> settings with that meaning, the likeliest first; an algorithm has some of them."""

NETWORK_SETTINGS = {
    **dict.fromkeys(("net_arch", "hidden_sizes", "hidden_dims", "hidden_size", "layers"), "fcnet_hiddens"),
    **dict.fromkeys(("activation", "activation_fn", "nonlinearity"), "fcnet_activation"),
}
"""Name in another library -> setting of the default networks."""

_NETWORK = {
    "fcnet_hiddens": "Set the network's layers: rl_module(model_config={'fcnet_hiddens': [64, 64]}).",
    "fcnet_activation": "Set the network's activation: rl_module(model_config={'fcnet_activation': 'relu'}).",
}
_SCHEDULE = "For a decaying learning rate, set a schedule over env steps: training(lr=[[0, 0.0003], [1000000, 0.0]])."
_LENGTH = "Set the length of training when you start it: algo.learn({'num_env_steps_sampled_lifetime': 1000000})."
_SHOWN = "algo.learn(goal) shows the progress (progress=False: no output); print(algo.train()) shows one iteration."
_STANDARDISED = "PPO always standardises advantages over the train batch: leave it out."
_VIDEOS = "algo.record('video.mp4') records a video; evaluation(evaluation_video_interval=1) films each evaluation."
_LOSS = "Define a loss in Learner.compute_loss_for_module(): learners(learner_class=MyLearner)."
_BUILD = "An algorithm does this, not a config. Build the algorithm first: algo = config.build_algo()."
ANSWERS = {
    "policy_kwargs": _NETWORK["fcnet_hiddens"],
    **{theirs: _NETWORK[ours] for theirs, ours in NETWORK_SETTINGS.items()},
    **dict.fromkeys(("anneal_lr", "lr_decay", "lr_scheduler"), _SCHEDULE),
    **dict.fromkeys(("total_timesteps", "num_timesteps", "max_steps", "num_iterations"), _LENGTH),
    **dict.fromkeys(("verbose", "log_interval", "progress_bar"), _SHOWN),
    **dict.fromkeys(("norm_adv", "normalize_advantage", "normalize_advantages"), _STANDARDISED),
    **dict.fromkeys(("capture_video", "record_video", "save_video"), _VIDEOS),
    **dict.fromkeys(("loss_fn", "loss"), _LOSS),
    "tensorboard_log": "Every run writes TensorBoard events into its folder: reporting(results_dir='results').",
    **dict.fromkeys(("train", "learn", "fit", "predict", "save", "load", "compute_single_action"), _BUILD),
    "policy": "The default network fits the spaces. For another network, set rl_module(rl_module_spec=...).",
}
"""Name in another library that is no setting here -> the sentence that says what to write."""
