#!/bin/sh
# Slurm Epilog (slurm.conf: Epilog=/etc/slurm/epilog.d/gpuwatch.sh), as root on each node after a job.
# Ends the recording of the job, and drains the node with a reason that people can read when a GPU broke meanwhile.
set -u
here=$(dirname "$0")
gpuwatch=${GPUWATCH:-/opt/gpuwatch/bin/gpuwatch}
scontrol=${SCONTROL:-scontrol}
seconds=${GPUWATCH_SECONDS:-12}
folder=${GPUWATCH_RECORD:-}
job=${SLURM_JOB_ID:-0}
node=${SLURMD_NODENAME:-$(hostname -s)}

name=job-$job-$node
if [ -n "$folder" ] && [ -f "$folder/$name.pid" ]; then
  pid=$(cat "$folder/$name.pid")
  # The number may belong to another process by now. A recording survives its recorder's end.
  if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$name.rec"; then
    kill "$pid"
  fi
  rm -f "$folder/$name.pid"
fi

reason=$(timeout 30 "$gpuwatch" check --for "$seconds" --json --fail-on never 2>/dev/null \
  | python3 "$here/node_check.py" | head -n 1)
if [ -n "$reason" ]; then
  "$scontrol" update NodeName="$node" State=DRAIN Reason="$reason"
fi
exit 0
