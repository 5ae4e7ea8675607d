#!/bin/sh
# Slurm Prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/gpuwatch.sh), as root on each node before a job.
# A node whose GPUs are broken is drained and the job goes elsewhere: Slurm does both when a prolog fails.
# With GPUWATCH_RECORD=folder every job gets a recording, which the epilog ends.
set -u
here=$(dirname "$0")
gpuwatch=${GPUWATCH:-/opt/gpuwatch/bin/gpuwatch}
seconds=${GPUWATCH_SECONDS:-3}
folder=${GPUWATCH_RECORD:-}
job=${SLURM_JOB_ID:-0}

reason=$(timeout 30 "$gpuwatch" check --for "$seconds" --json --fail-on never 2>/dev/null \
  | python3 "$here/node_check.py")
if [ -n "$reason" ]; then
  echo "$reason" | head -n 1
  exit 1
fi

if [ -n "$folder" ]; then
  mkdir -p "$folder"
  nohup "$gpuwatch" check --for 86400 --quiet --fail-on never --record "$folder/job-$job.rec" \
    >/dev/null 2>&1 &
  echo $! >"$folder/job-$job.pid"
fi
exit 0
