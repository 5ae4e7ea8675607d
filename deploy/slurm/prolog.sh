#!/bin/sh
# Slurm Prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/gpuwatch.sh), as root on each node before a job.
# A node whose GPUs are broken is drained with a reason that people can read, and the job goes elsewhere, as Slurm does
# when a prolog fails.
# With GPUWATCH_RECORD=folder every job gets a recording, which the epilog ends; a job that is queued again goes on with it.
set -u
here=$(dirname "$0")
gpuwatch=${GPUWATCH:-/opt/gpuwatch/bin/gpuwatch}
scontrol=${SCONTROL:-scontrol}
seconds=${GPUWATCH_SECONDS:-12}
folder=${GPUWATCH_RECORD:-}
longest=${GPUWATCH_RECORD_SECONDS:-604800}
job=${SLURM_JOB_ID:-0}
node=${SLURMD_NODENAME:-$(hostname -s)}

reason=$(timeout 30 "$gpuwatch" check --for "$seconds" --json --fail-on never 2>/dev/null \
  | python3 "$here/node_check.py" | head -n 1)
if [ -n "$reason" ]; then
  echo "$reason"
  "$scontrol" update NodeName="$node" State=DRAIN Reason="$reason"
  exit 1
fi

if [ -n "$folder" ] && mkdir -p "$folder"; then
  name=$folder/job-$job-$node
  rm -f "$name.pid"
  # After the prolog Slurm kills what is left of its process group. The recorder is out of it, in a session of its own,
  # once its number is there.
  # shellcheck disable=SC2016
  setsid sh -c 'echo $$ >"$1" && shift && exec "$@"' sh "$name.pid" \
    "$gpuwatch" record --quiet --append --for "$longest" "$name.rec" </dev/null >/dev/null 2>&1 &
  tries=100
  while [ ! -s "$name.pid" ] && [ "$tries" -gt 0 ]; do
    sleep 0.1
    tries=$((tries - 1))
  done
fi
exit 0
