#!/bin/bash
# Training without Ray, on 4 nodes of 8 GPUs: sbatch slurm.sh run.toml. The same command
# continues from the last checkpoint.
#SBATCH --job-name=tidemill
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
# All cores and all memory: by default a task may get one core, which eight ranks and their readers
# would share.
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -euo pipefail
run=${1:-sd2.toml}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export FI_PROVIDER=efa NCCL_SOCKET_IFNAME=^lo,docker
srun --cpus-per-task="$SLURM_CPUS_ON_NODE" torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d \
  --rdzv-endpoint "$head:29500" --max-restarts 3 -m tidemill train "$run"
