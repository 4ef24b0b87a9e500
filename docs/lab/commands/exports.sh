# The commands of docs/lab/results.md#exports; paste what you need.
vitpcm export MASKS --classes voc --images IMAGES --out out --format png,coco,yolo,label-studio,cvat,labelme,voc
vitpcm export MASKS --classes voc --out polygons --format coco --coco-shape polygons && mv polygons/coco out/coco-polygons
python reference/exports/check.py out
