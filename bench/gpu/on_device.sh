#!/bin/bash
# All of bench.gpu, on a machine with a GPU that is there for a few minutes:
#
#   bench/gpu/on_device.sh                        everything, within nine minutes
#   bench/gpu/on_device.sh --tasks steps drafts   flags are those of python -m bench.gpu
#   bench/gpu/on_device.sh --dry                  every step on a CPU; no figure counts
#
# Writes into $OUT/gpu where OUT is set, else into bench/results/gpu/latest (--dry: a temporary
# folder). Uses .venv/bin/python where there is one, else python3; wheels of what that lacks may lie
# in .whl, and are unpacked beside it.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ -x .venv/bin/python ]; then python=$PWD/.venv/bin/python; else python=python3; fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if compgen -G '.whl/*.whl' > /dev/null; then
  site=$(mktemp -d)
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" .whl/*.whl
  PYTHONPATH=$PYTHONPATH:$site
fi

out=bench/results/gpu/latest
for word in "$@"; do if [ "$word" = --dry ]; then out=$(mktemp -d); fi; done
if [ -n "${OUT:-}" ]; then out=$OUT/gpu; fi

echo "on_device.sh: $("$python" --version), results in $out"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || true
echo "+ $python -m bench.gpu --out $out $*"
status=0
"$python" -m bench.gpu --out "$out" "$@" || status=$?

# What is brought back from a device is few files, none of them large: cat rest.tgz.* | tar xz
if [ -n "${OUT:-}" ] && [ -d "$out" ]; then
  cd "$out"
  rest=()
  for folder in real chats dspark; do if [ -d "$folder" ]; then rest+=("$folder"); fi; done
  if [ ${#rest[@]} -gt 0 ]; then
    tar cz "${rest[@]}" | split -b 15M - rest.tgz.
    rm -r "${rest[@]}"
  fi
fi
exit "$status"
