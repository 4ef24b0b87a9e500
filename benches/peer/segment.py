#!/usr/bin/env python3
"""`vitpcm segment` of a folder beside the same work in PyTorch: time per image and peak memory, in one run.

usage: segment.py FOLDER_OF_IMAGES [--count 20] [--size 960] [--backbone vit-s16] [--rounds 3] [--threads 2]
needs: a built target/release/vitpcm, and torch, pillow, numpy in the Python that runs this

Both sides read the same untrained model file, decode, resize (antialiased bilinear), run the network, enlarge the
scores, take the arg-max and write one indexed PNG an image. They take turns; the table gives medians and the range.
PyTorch runs eager with its fused attention. Times are those of whole processes less their start (a run over one
image is subtracted), memory is the peak of the process (ru_maxrss).
"""
import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIANTS = {
    "vit-ti16": dict(width=192, heads=3),
    "vit-s16": dict(width=384, heads=6),
    "vit-b16": dict(width=768, heads=12),
}


def torch_side(args):
    """The worker process: segments the listed images with PyTorch."""
    import numpy as np
    import torch
    import torch.nn.functional as F
    from PIL import Image

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    spec = importlib.util.spec_from_file_location("twin", ROOT / "reference/nets/make.py")
    twin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twin)

    def fused_forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.attn.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.attn.proj(attended)
        return x + self.mlp.fc2(F.gelu(self.mlp.fc1(self.norm2(x))))

    twin.Block.forward = fused_forward
    tensors = twin.read_safetensors(args.model)
    grid = round((tensors["pos_embed"].shape[1] - 1) ** 0.5)
    network = twin.Pcm(classes=21, units=192, patch=16, depth=12, registers=0, layer_scale=False,
                       position_grid=grid, **VARIANTS[args.backbone])
    network.load_state_dict(tensors)
    network.eval()
    palette = [channel for label in range(256) for channel in (label, label, label)]
    for path in args.images:
        pixels = torch.from_numpy(np.asarray(Image.open(path).convert("RGB"))).permute(2, 0, 1)[None].float()
        height, width = pixels.shape[2:]
        pixels = F.interpolate(pixels, (args.size, args.size), mode="bilinear", antialias=True)
        scores, _ = network((pixels - 127.5) / 127.5)
        scores = F.interpolate(scores.permute(0, 3, 1, 2), (height, width), mode="bilinear")
        mask = Image.fromarray(scores[0].argmax(0).to(torch.uint8).numpy())
        mask.putpalette(palette)
        mask.save(pathlib.Path(args.out) / (pathlib.Path(path).stem + ".png"))


def measured(command):
    """Seconds and peak megabytes of a process."""
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"failed: {command}\n{process.stderr.read().decode()}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--size", type=int, default=960)
    parser.add_argument("--backbone", default="vit-s16", choices=VARIANTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model")
    parser.add_argument("--out")
    parser.add_argument("--images", nargs="*")
    args = parser.parse_args()
    if args.images:
        return torch_side(args)

    vitpcm = ROOT / "target/release/vitpcm"
    images = sorted(pathlib.Path(args.folder).glob("*.jpg"))[: args.count]
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/model.safetensors"
        subprocess.run([vitpcm, "model", "random", "--backbone", args.backbone, "--out", model], check=True)
        ours, theirs = f"{folder}/ours", f"{folder}/theirs"
        os.mkdir(theirs)

        def our_command(images):
            return [vitpcm, "segment", *images, "--model", model, "--out", ours, "--size", args.size, "--no-tags",
                    "--threads", args.threads, "--quiet"]

        def their_command(images):
            return [sys.executable, __file__, "--model", model, "--out", theirs, "--size", args.size, "--threads",
                    args.threads, "--backbone", args.backbone, "--images", *images]

        rows = {"vitpcm": (our_command, []), "PyTorch": (their_command, [])}
        for _ in range(args.rounds):
            for command, rounds in rows.values():
                one, _ = measured(command(images[:1]))
                many, peak = measured(command(images))
                rounds.append(((many - one) / (len(images) - 1), one, peak))
        from PIL import Image
        import numpy as np
        agree = [np.mean(np.asarray(Image.open(f"{ours}/{i.stem}.png")) == np.asarray(Image.open(f"{theirs}/{i.stem}.png")))
                 for i in images]
    print(f"{args.backbone}, {args.size} px, {len(images)} images, {args.threads} threads, {args.rounds} rounds")
    print(f"masks agree on {100 * statistics.mean(agree):.2f} % of the pixels")
    print(f"{'':8} {'s/image':>9} {'range':>13} {'first image s':>14} {'peak MB':>8}")
    medians = {}
    for name, (_, rounds) in rows.items():
        seconds = [r[0] for r in rounds]
        medians[name] = [statistics.median(r[i] for r in rounds) for i in range(3)]
        median, one, peak = medians[name]
        print(f"{name:8} {median:9.3f} {min(seconds):6.3f}–{max(seconds):6.3f} {one:14.2f} {peak:8.0f}")
    print("ratio    " + json.dumps([round(a / b, 3) for a, b in zip(medians["vitpcm"], medians["PyTorch"])]))


main()
