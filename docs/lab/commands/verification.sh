# The commands of docs/lab/verification.md; paste what you need. `vitpcm-lab`: cargo install --path crates/vitpcm-lab

# 69.0: the mean of two trainings on filled masks
vitpcm segment VOC2012/JPEGImages --split training --tags-file VOC2012 --skip-difficult --crf --crf-set iterations=5 --fill-unsure --out filled
common="--images VOC2012/JPEGImages --masks filled --list train.txt --classes voc --weights resnet50.safetensors --batch 16 --set crops.side=449 --set crops.scales=[0.5,2.0]
    --set crops.colour_probability=0.5 --set crops.compare_at=pixels --set crops.seen_at=one-scale --set schedule.rate=1.2e-3
    --val-images VOC2012/JPEGImages --val-truth VOC2012/SegmentationClass --val-list val.txt"
vitpcm verify $common --steps 12752 --seed 1 --out masks-only                # train.txt: the 10,582 names of trainaug
# The second one had a teacher (feature distillation), which later versions do not have: commit b4088d9.
vitpcm verify $common --steps 9514 --teacher embedded --set teacher.weight=3 --out taught
vitpcm-lab average masks-only/model.safetensors taught/model.safetensors --out mean.safetensors
mkdir val && xargs -I NAME cp VOC2012/JPEGImages/NAME.jpg val < VOC2012/ImageSets/Segmentation/val.txt
vitpcm segment val --model mean.safetensors --scales 0.5,0.75,1,1.25,1.5 --flip --crf --crf-set iterations=5 --out verified
vitpcm evaluate --pred verified --truth VOC2012/SegmentationClass --classes voc

# The picture of the course
python scripts/draw_curve.py docs/runs/voc-verification-filled.csv curve.svg

# The training masks against the true ones
vitpcm evaluate --pred masks --truth SegmentationClassAug --classes voc --list trainaug.txt

# Means of weights, 250 val images
vitpcm-lab average closed/model.safetensors open/model.safetensors changed/model.safetensors --out mean.safetensors
vitpcm segment val250 --model mean.safetensors --crf --crf-set iterations=5 --out masks && vitpcm evaluate --pred masks --truth SegmentationClass --classes voc

# What two networks agree on, 400 training images
vitpcm-lab join crf-masks other-masks --agreed --out agreed-masks
vitpcm evaluate --pred agreed-masks --truth SegmentationClassAug --classes voc --json FILE    # the last column of `confusion` is what is ignored

# The loss at points and at pixels, on drawn scenes, for seeds 0 and 1, scored on the images that it learns from
vitpcm demo --data-only u
vitpcm verify --images u/images --masks u/masks --val-images u/images --val-truth u/masks --classes u/classes.txt --backbone resnet-nano --batch 8 --steps 700 --seed 0 --scales 1 \
    --set crops.side=65 --set crops.compare_at=pixels --out run
