#!/bin/bash
# Trains examples/gpt on the machines of a SLURM job, and again from its newest checkpoint when its time was too short.
#
#     sbatch --nodes 2 --gpus-per-node 8 examples/clusters/slurm.sh --dp 2 --fs 8 --compress --run runs/two
#
# from the repository's root, on a file system that all machines share. The arguments are train.py's.
#SBATCH --job-name=gpt
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
set -u

# Names of interfaces, as `ip -br address` lists them, where those that are found do not join the machines:
# export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# One torchrun on each machine starts a process for each of its GPUs. Asked to end, it leaves them time for a checkpoint.
# After a restart they meet in a new store.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
srun --kill-on-bad-exit=1 torchrun \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
  --rdzv-backend c10d --rdzv-endpoint "$first:29400" --rdzv-id "$SLURM_JOB_ID" \
  --max-restarts 3 -- examples/gpt/train.py "$@" --resume &
step=$!

requeue=no
trap 'requeue=yes; kill -TERM "$step"' USR1 # --signal: the time is nearly over
trap 'kill -TERM "$step"' TERM              # cancelled, or preempted: SLURM itself puts that one back into the queue

wait "$step"
status=$?
while kill -0 "$step" 2> /dev/null; do # a signal has interrupted the wait
  wait "$step"
  status=$?
done

if [ "$requeue" = yes ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
