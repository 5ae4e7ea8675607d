#!/bin/sh
# Slurm Prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/gpuwatch.sh), as root on each node before a job.
# A node whose GPUs are broken is drained with a reason that people can read, and the job goes elsewhere, as Slurm does
# when a prolog fails.
# With GPUWATCH_RECORD=folder every job gets a recording, which the epilog ends.
set -u
here=$(dirname "$0")
gpuwatch=${GPUWATCH:-/opt/gpuwatch/bin/gpuwatch}
scontrol=${SCONTROL:-scontrol}
seconds=${GPUWATCH_SECONDS:-12}
folder=${GPUWATCH_RECORD:-}
job=${SLURM_JOB_ID:-0}
node=${SLURMD_NODENAME:-$(hostname -s)}

reason=$(timeout 30 "$gpuwatch" check --for "$seconds" --json --fail-on never 2>/dev/null \
  | python3 "$here/node_check.py" | head -n 1)
if [ -n "$reason" ]; then
  echo "$reason"
  "$scontrol" update NodeName="$node" State=DRAIN Reason="$reason"
  exit 1
fi

if [ -n "$folder" ]; then
  mkdir -p "$folder"
  nohup "$gpuwatch" record --quiet "$folder/job-$job.rec" >/dev/null 2>&1 &
  echo $! >"$folder/job-$job.pid"
fi
exit 0
