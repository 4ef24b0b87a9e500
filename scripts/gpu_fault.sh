#!/usr/bin/env bash
# A GPU that fails a run: no device, and no memory left in the middle. The state must be whole, the exit code right, and the run must go on.
#
#   cargo build --release --features vitpcm-cli/cuda
#   scripts/gpu_fault.sh target/release/vitpcm      # needs an NVIDIA GPU; a minute
set -euo pipefail
vitpcm=$(realpath "$1")
cd "$(mktemp -d)"
"$vitpcm" demo --data-only drawn --quiet >/dev/null
mkdir -p data/images
head -n 33 drawn/tags.csv >data/tags.csv
tail -n +2 data/tags.csv | cut -d, -f1 | while read -r name; do cp "drawn/images/$name" data/images/; done
# Patches of 1,920 pixels a side: some gigabytes an image.
train() {
    local resume=()
    if [ -e run/config.toml ]; then resume=(--resume); fi
    "$vitpcm" train --data data --out run "${resume[@]}" --device cuda --weights none --backbone vit-b16 --set model.grid=120 --set model.inference_grid=24 \
        --set validation.grid=24 --val-share 0.06 --quiet "$@"
}
ends_with() { # CODE COMMAND...: the command's exit code, and what it says
    local expected=$1 code=0
    shift
    "$@" 2>stderr.txt >/dev/null || code=$?
    echo "exit code $code: $(grep -m 1 -i error stderr.txt | cut -c1-300)"
    [ "$code" = "$expected" ] || { cat stderr.txt; exit 1; }
}

echo "== one epoch, an image at a time"
ends_with 0 train --epochs 1 --batch 1 --set schedule.effective_batch=4
before=$(sha256sum run/last/state.safetensors)

echo "== the GPU is gone"
CUDA_VISIBLE_DEVICES="" ends_with 2 train --epochs 2 --batch 1 --set schedule.effective_batch=4
[ "$before" = "$(sha256sum run/last/state.safetensors)" ]

echo "== the GPU's memory is used up in the middle of the run"
ends_with 3 train --epochs 2 --batch 30 --set schedule.effective_batch=30
[ "$before" = "$(sha256sum run/last/state.safetensors)" ] && echo "the state of before is there, whole"

echo "== and on"
ends_with 0 train --epochs 2 --batch 1 --set schedule.effective_batch=4
find run -name '*.tmp' -o -name '.vitpcm.lock' | { ! grep .; } && echo "nothing half-written is left"
