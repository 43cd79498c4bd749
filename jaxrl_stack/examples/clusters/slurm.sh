#!/usr/bin/env bash
# IMPALA on four SLURM nodes: a Ray cluster for one job. Submit it with: sbatch slurm.sh
#SBATCH --job-name=jaxrl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=1
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.log
set -euo pipefail

# The environment must have jaxrl_stack on all nodes, and RESULTS must be a folder that all nodes can read.
source "${VENV:-$HOME/venv}/bin/activate"
results="${RESULTS:-$HOME/results}/jaxrl-${SLURM_JOB_ID}"
head_node="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"

# Paths of Ray's sockets have at most 107 bytes.
export RAY_TMPDIR="/tmp/ray-${SLURM_JOB_ID}"

# Each node starts Ray. When all have joined, the first one runs the command after "--"; then all stop Ray.
# Without the option, srun gives one CPU to each task.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ray symmetric-run \
    --address "${head_node}:6379" \
    --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "$SLURM_CPUS_PER_TASK" \
    -- \
    jaxrl train IMPALA CartPole-v1 \
    --address auto \
    --set num_env_runners=96 \
    --set num_envs_per_env_runner=8 \
    --set num_learners=1 \
    --set num_gpus_per_learner=1 \
    --set num_aggregator_actors_per_learner=2 \
    --set restart_failed_env_runners=True \
    --checkpoint-freq 50 \
    --num-to-keep 3 \
    --results-dir "$results" \
    --stop '{"num_env_steps_sampled_lifetime": 100000000}'
