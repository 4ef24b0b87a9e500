//! COCO's run-length encoding of masks and its polygon rasterisation.
