"""PyTorch's side for whole networks: the network of reference/nets/make.py with PyTorch's fused attention, one forward pass,
and one training step as a PyTorch user would write it. The same forward pass, exported to ONNX, is onnxruntime's side.

    python network.py THREADS DEVICE PRECISION forward MODEL BACKBONE SIDE     # DEVICE cpu, cuda, or onnxruntime
    python network.py THREADS DEVICE PRECISION step MODEL BACKBONE IMAGES

Speaks as crates/vitpcm-train/examples/time_network.rs does: first a number that the other side must find as well, then for every
line on standard input the seconds that one run took.
"""

import functools
import importlib.util
import pathlib
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIANTS = {
    "vit-ti16": dict(width=192, heads=3),
    "vit-s16": dict(width=384, heads=6),
    "vit-b16": dict(width=768, heads=12),
}
CLASSES, SIDE, GRID, TRAINED_BLOCKS = 21, 384, 24, 5
DROPOUT_BACKBONE, DROPOUT_HEAD = 0.1, 0.2


def load(model, backbone):
    """The network, with the weights of a vitpcm model file, ready for inference."""
    spec = importlib.util.spec_from_file_location("twin", ROOT / "reference/nets/make.py")
    twin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twin)
    twin.Block.forward = fused_block
    tensors = twin.read_safetensors(model)
    position_grid = round((tensors["pos_embed"].shape[1] - 1) ** 0.5)
    network = twin.Pcm(classes=CLASSES, units=192, patch=16, depth=12, registers=0, layer_scale=False,
                       position_grid=position_grid, **VARIANTS[backbone])
    network.load_state_dict(tensors)
    network.resize_positions = twin.resize_positions
    return network.eval()


def fused_block(self, x):
    batch, tokens, width = x.shape
    q, k, v = self.attn.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
    x = x + F.dropout(self.attn.proj(attended), DROPOUT_BACKBONE, self.training)
    hidden = F.dropout(F.gelu(self.mlp.fc1(self.norm2(x))), DROPOUT_BACKBONE, self.training)
    return x + F.dropout(self.mlp.fc2(hidden), DROPOUT_BACKBONE, self.training)


def forward(network, side, device, autocast):
    pixels = pattern(1, 3, side, side).to(device)

    @torch.inference_mode()
    def run():
        with autocast():
            return network(pixels)[0]

    return float(run().float().square().sum()), run


def forward_in_onnxruntime(network, side, threads):
    """The whole network (ViT, HV-BiLSTM, classifier) for images of one size, with all of onnxruntime's graph optimisations."""
    import onnxruntime

    pixels = pattern(1, 3, side, side)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # The exporter that needs no further package; its warnings are about other sizes of batch and image.
        warnings.simplefilter("ignore")
        path = f"{folder}/network.onnx"
        torch.onnx.export(network, (pixels,), path, dynamo=False, opset_version=17, input_names=["pixels"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {"pixels": pixels.numpy()}

    def run():
        return session.run(None, inputs)[0]

    return float(np.square(run()).sum()), run


def step(network, num_images, device, autocast):
    """Three passes: the frozen blocks run once, training pass and target pass continue from them."""
    num_frozen = len(network.blocks) - TRAINED_BLOCKS
    network.requires_grad_(False)
    for part in [*network.blocks[num_frozen:], network.norm, network.hv_bilstm, network.patch_classifier]:
        part.requires_grad_(True)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    adam = torch.optim.Adam(trained, lr=1e-4, eps=1e-7, fused=True)
    pixels = torch.cat([pattern(num_images, 3, SIDE, SIDE), pattern(num_images // 4, 3, SIDE, SIDE)]).to(device)
    tags = torch.zeros(num_images, CLASSES, device=device)
    tags[:, 0] = 1
    tags[range(num_images), [image % (CLASSES - 1) + 1 for image in range(num_images)]] = 1

    @torch.no_grad()
    def frozen():
        patches = network.patch_embed.proj(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([network.cls_token.expand(len(pixels), -1, -1), patches], dim=1)
        x = x + network.resize_positions(network.pos_embed, GRID, GRID)
        for block in network.blocks[:num_frozen]:
            x = block(x)
        return x

    def scores_from(x):
        for block in network.blocks[num_frozen:]:
            x = block(x)
        grid = network.norm(x[:, 1:]).reshape(len(x), GRID, GRID, -1)
        grid = F.dropout(grid, DROPOUT_HEAD, network.training)
        features = F.dropout(network.hv_bilstm(grid), DROPOUT_HEAD, network.training)
        return torch.softmax(network.patch_classifier(features).float(), dim=-1)

    def loss():
        was_training = network.training
        network.eval()
        with autocast():
            x = frozen()
        with torch.no_grad():  # the target: first views, without dropout, cropped as the second views were
            with autocast():
                maps = scores_from(x[:num_images])
            on_second_grid = F.avg_pool2d(maps.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
            peaks = on_second_grid.amax(dim=(1, 2))
            target = on_second_grid * (tags / peaks)[:, None, None]
            target = target / target.sum(-1, keepdim=True)
        network.train(was_training)
        with autocast():
            scores = scores_from(x)
        y = scores[:num_images].flatten(1, 2).amax(dim=1).clamp(1e-7, 1 - 1e-7)
        mce = F.binary_cross_entropy(y, tags)
        half = GRID // 2
        second = scores[num_images:].reshape(-1, 2, half, 2, half, CLASSES).transpose(2, 3).reshape(-1, half, half, CLASSES)
        equivariance = -(target * second.clamp(1e-7, 1).log()).sum(-1).mean()
        return mce + equivariance + 0.01 * network.patch_classifier.weight.square().sum()

    def run():
        adam.zero_grad()
        loss().backward()
        adam.step()

    with torch.no_grad():
        check = float(loss())
    network.train()
    return check, run


def pattern(*shape):
    """Numbers between -1 and 1 that both sides can make: a hash of the position."""
    index = np.arange(np.prod(shape), dtype=np.uint32)
    values = (index * np.uint32(2654435761) >> np.uint32(8)).astype(np.float32) / np.float32(8388608) - np.float32(1)
    return torch.from_numpy(values.reshape(shape))


def main():
    threads, device, precision, kind, model, backbone, number = sys.argv[1:]
    torch.set_num_threads(int(threads))
    network = load(model, backbone)
    if device == "onnxruntime":
        answer(*forward_in_onnxruntime(network, int(number), int(threads)), lambda: None)
        return
    network = network.to(device)
    torch.set_float32_matmul_precision("highest")
    autocast = functools.partial(torch.autocast, device, torch.bfloat16, enabled=precision == "bf16")
    make = forward if kind == "forward" else step
    answer(*make(network, int(number), device, autocast), torch.cuda.synchronize if device == "cuda" else lambda: None)


def answer(check, run, wait):
    """Runs once a line; `wait` returns when all work is done."""
    print(check, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        run()
        wait()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
