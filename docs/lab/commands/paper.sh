# The commands of docs/lab/paper.md and docs/lab/cam.md, table by table; paste what you need. `vitpcm-lab`: cargo install --path crates/vitpcm-lab
V=VOCdevkit/VOC2012              # the devkit
W=dinov2s.safetensors            # the backbone's weights
val=$V/ImageSets/Segmentation/val.txt

# Table 1: the ablation
train() { vitpcm train --data $V --weights $W --skip-difficult --batch 32 --epochs 4 --set validation.max_images=500 --set losses.et_weight=1 \
    --set model.dropout.conditioning=0.2 --set model.dropout.classifier=0.2 "$@"; }         # the last three as released, not our defaults
train --out mce --set losses.et_target=none --set model.conditioning=none
train --out et  --set model.conditioning=none
train --out lstm
vitpcm segment $V/JPEGImages --tags-file $V --split val --model lstm/model.safetensors --crf --out lstm-crf     # the last row
vitpcm evaluate --pred lstm-crf --truth $V/SegmentationClass --list $val --classes voc

# Table 2: masks by class
vitpcm segment $V/JPEGImages --tags-file $V --split val --out masks                    # the embedded model; --crf for the second row
vitpcm evaluate --pred masks --truth $V/SegmentationClass --list $val --classes voc

# Table A: masks of the training images
vitpcm segment $V/JPEGImages --tags-file $V --split train --out train-masks             # and with --crf
vitpcm evaluate --pred train-masks --truth $V/SegmentationClass --list $V/ImageSets/Segmentation/train.txt --classes voc

# Tables B and S1: the verification network (our settings: verification.sh)
vitpcm segment $V/JPEGImages --tags-file $V --split training --skip-difficult --crf --fill-unsure --out pseudo-masks
vitpcm verify --images $V/JPEGImages --masks pseudo-masks --weights resnet50.safetensors --out verification --crf \
    --val-images $V/JPEGImages --val-truth $V/SegmentationClass --val-list $val

# Tables C and S2: MS COCO 2014
D=coco            # D/train2014, D/val2014, D/annotations/instances_{train,val}2014.json: as COCO's archives unpack
vitpcm data inspect $D
vitpcm train --data $D --weights $W --out coco-run --set views.crop_probability=0
vitpcm export $D/annotations/instances_val2014.json --out coco-truth --format png        # polygons and run lengths to label maps
vitpcm segment $D/val2014 --model coco-run/model.safetensors --tags-file $D --split val2014 --crf --out coco-masks
vitpcm evaluate --pred coco-masks --truth coco-truth --classes coco                      # 81 classes, each with its IoU: Table S2
vitpcm segment $D/train2014 --model coco-run/model.safetensors --tags-file $D --split training --crf --out coco-pseudo-masks
vitpcm verify --images $D/train2014 --masks coco-pseudo-masks --weights resnet101.pth --classes coco --out coco-verification --crf \
    --val-images $D/val2014 --val-truth coco-truth

# Table D: foreground against a self-supervised ViT
vitpcm-lab attention $V/JPEGImages --list $val --weights dinov2s.pt --out attention          # attention/head-1 … head-6, attention/mean
vitpcm-lab foreground --pred attention/head-* --truth $V/SegmentationClass --list $val      # the best head, by the truth
vitpcm-lab foreground --pred attention/mean --truth $V/SegmentationClass --list $val        # one mask an image
vitpcm segment $V/JPEGImages --tags-file $V --split val --out masks                      # or --no-tags; --crf
vitpcm-lab foreground --pred masks --truth $V/SegmentationClass --list $val

# Table 3: CAM against PCM
common="--data $V --skip-difficult --batch 32 --epochs 5 --set validation.every_epochs=5 --set validation.max_images=1449"
pcm="--set model.conditioning=none --set losses.et_target=none"
vitpcm-lab cam $common --out cam-vit      --weights dinov2s.safetensors
vitpcm train $common --out pcm-vit      --weights dinov2s.safetensors  $pcm
vitpcm-lab cam $common --out cam-resnet   --weights resnet50.safetensors
vitpcm train $common --out pcm-resnet   --weights resnet50.safetensors $pcm
vitpcm-lab cam $common --out cam-xception --weights none --backbone xception   # or --weights xception.safetensors
vitpcm train $common --out pcm-xception --weights none --backbone xception $pcm

# Figures 4, 6, S1, S2: maps and masks
vitpcm segment photo.jpg --tags cat,sofa --size 960 --out maps --format heatmap,png,overlay    # columns (b) to (e) of figure 4; S1
vitpcm segment photo.jpg --tags cat,sofa --size 960 --out refined --crf --format overlay        # column (f)
vitpcm segment val --model verification/model.safetensors --scales 0.5,0.75,1,1.25,1.5 --flip --crf --out s2 --truth $V/SegmentationClass
