# The commands of docs/lab/performance.md#several-ranks; paste what you need.
vitpcm train --data VOC --weights vit-tiny.safetensors --threads 1 --epochs 1 --batch 8 --set schedule.effective_batch=16 \
    --set schedule.warmup_epochs=0 --set model.grid=12 --set validation.grid=12 --set validation.max_images=16 --out run
vitpcm train --data VOC --preset demo --threads 1 --epochs 2 --batch 4 --set schedule.effective_batch=24 --set model.grid=4 \
    --set model.inference_grid=4 --set validation.grid=4 --set model.lstm_units=8 --set model.dropout.backbone=0.1 \
    --set validation.max_images=12 --out run      # each also after mpirun -n N --oversubscribe --bind-to none
