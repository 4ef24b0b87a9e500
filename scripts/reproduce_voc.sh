#!/bin/bash
# From the VOC 2012 devkit and backbone weights to the table of docs/lab/results.md: a first round from tags, its masks of the
# training images, a second round on them; a plain network that finds all of people, its masks joined to the second round's, a
# third round on these; masks of val, scores.
#
#   scripts/reproduce_voc.sh VOCdevkit/VOC2012 dinov2s.safetensors OUT [vitpcm options such as --device cuda]
#
# FIRST_EPOCHS (10), SECOND_EPOCHS (5), PLAIN_EPOCHS (4) and THIRD_EPOCHS (5) change how long the rounds are.
# Every step is skipped or resumed when the script is run again. With ImageSets/Segmentation/trainaug.txt (or
# SegmentationClassAug) the 10,582 images of trainaug are trained on, else the 1,464 of train.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
voc=$1 weights=$2 out=$3; shift 3
vitpcm=${VITPCM:-vitpcm}
mkdir -p "$out"

resume() { if [ -e "$1" ]; then echo --resume; fi; } # FILE: where an earlier run got as far as this file
train() { # NAME EPOCHS OPTIONS…
    local name=$1 epochs=$2; shift 2
    "$vitpcm" train --data "$voc" --weights "$weights" --out "$out/$name" $(resume "$out/$name/config.toml") --skip-difficult --batch 32 --epochs "$epochs" \
        --set validation.every_epochs=2 --set loader.cache_megabytes=8000 "$@"
}
masks() { # NAME SPLIT OPTIONS…
    local name=$1 split=$2; shift 2
    "$vitpcm" segment "$voc/JPEGImages" --tags-file "$voc" --split "$split" --out "$out/$name" \
        $(resume "$out/$name/.vitpcm/record-0.jsonl") "$@"
}
score() { # NAME
    "$vitpcm" evaluate --pred "$out/$1" --truth "$voc/SegmentationClass" --list "$voc/ImageSets/Segmentation/val.txt" \
        --classes voc --json "$out/$1.json" > "$out/$1.txt"
    printf '%-24s mIoU %s\n' "$1" "$(grep -o '"miou": *[0-9.]*' "$out/$1.json" | grep -o '[0-9.]*$')"
}

train first "${FIRST_EPOCHS:-10}" "$@"
masks training-masks training --model "$out/first/model.safetensors" --skip-difficult --crf --scales 1,1.5 "$@"
train second "${SECOND_EPOCHS:-5}" --pseudo-masks "$out/training-masks" "$@"
train plain "${PLAIN_EPOCHS:-4}" --set model.conditioning=none --set losses.et_target=none "$@"
masks second-masks training --model "$out/second/model.safetensors" --skip-difficult "$@"
masks plain-masks training --model "$out/plain/model.safetensors" --skip-difficult --crf --crf-set iterations=5 "$@"
"${VITPCM_LAB:-vitpcm-lab}" join "$out/second-masks" "$out/plain-masks" --out "$out/joined-masks" --share 0.4
train third "${THIRD_EPOCHS:-5}" --pseudo-masks "$out/joined-masks" "$@"
for round in first second third; do
    model=(--model "$out/$round/model.safetensors")
    masks "$round-val" val "${model[@]}" "$@"; score "$round-val"
    masks "$round-val-crf" val "${model[@]}" --crf "$@"; score "$round-val-crf"
    masks "$round-val-scales-crf" val "${model[@]}" --crf --scales 0.75,1,1.25,1.5 "$@"; score "$round-val-scales-crf"
done
