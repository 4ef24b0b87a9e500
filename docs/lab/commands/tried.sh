# The command of docs/lab/tried.md#settings-on-voc; each row of figures/settings-search.csv adds its change.
vitpcm train --data VOC2012 --out run --weights dinov2s.safetensors --skip-difficult --batch 32 --epochs 4 \
    --set schedule.effective_batch=32 --set model.dropout.backbone=0 --set validation.max_images=500 --set validation.grid=32 \
    --set model.inference_grid=32 --set validation.every_epochs=2 --set losses.et_weight=1 --set model.dropout.conditioning=0.2 \
    --set model.dropout.classifier=0.2      # the last three: no longer the defaults
