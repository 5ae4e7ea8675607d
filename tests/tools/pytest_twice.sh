#!/usr/bin/env bash
# Run tests; those that fail are run once more, alone, and count only if they fail again. Both runs are printed.
# Many tests start real programs beside each other; on a machine with two cores one may miss its time. A test that is
# named by the first run and not by the second is a fault of the test, to be mended.
# usage: pytest_twice.sh PYTHON CACHE PATH [options of the first run]
set -uo pipefail
python=$1 cache=$2 path=$3
shift 3
"$python" -m pytest -q -o cache_dir="$cache" "$@" "$path"
code=$?
[ "$code" -eq 1 ] || exit "$code"
echo "== what failed, once more and alone:"
exec "$python" -m pytest -q -o cache_dir="$cache" --last-failed --last-failed-no-failures none "$path"
