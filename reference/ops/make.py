"""Writes ops.safetensors: inputs, outputs and gradients of the operations as PyTorch computes them (CPU, f32).

    python reference/ops/make.py

Names: `CASE.NAME` for inputs, `CASE.output`, `CASE.cotangent` and `CASE.grad.NAME`. The gradients are those of
`(output * cotangent).sum()`.
"""

import pathlib

import torch
from safetensors.torch import save_file
from torch.nn import functional

torch.manual_seed(7)
torch.set_num_threads(1)
tensors = {}


def case(name, run, **inputs):
    inputs = {key: value.requires_grad_() for key, value in inputs.items()}
    output = run(**inputs)
    cotangent = torch.randn_like(output)
    grads = torch.autograd.grad((output * cotangent).sum(), list(inputs.values()))
    for key, value in inputs.items():
        tensors[f"{name}.{key}"] = value.detach().clone()
    for key, grad in zip(inputs, grads):
        tensors[f"{name}.grad.{key}"] = grad.clone().contiguous()
    tensors[f"{name}.output"] = output.detach().clone().contiguous()
    tensors[f"{name}.cotangent"] = cotangent


def attention(qkv):
    """Two heads, packed as timm packs them."""
    batch, tokens, packed = qkv.shape
    query, key, value = qkv.reshape(batch, tokens, 3, 2, packed // 6).permute(2, 0, 3, 1, 4).unbind(0)
    mixed = functional.scaled_dot_product_attention(query, key, value)
    return mixed.transpose(1, 2).reshape(batch, tokens, packed // 3)


UNITS, FEATURES = 5, 6
LSTM_PARAMETERS = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]


def hv_bilstm(grid, **parameters):
    """`torch.nn.LSTM` along rows, another along columns; parameters are named `rows.weight_ih` and so on."""
    batch, height, width, features = grid.shape

    def along(line, prefix):
        lstm = torch.nn.LSTM(FEATURES, UNITS, bidirectional=True, batch_first=True)
        names = {
            f"{key}_l0{suffix}": parameters[f"{prefix}_{direction}_{key}"]
            for key in LSTM_PARAMETERS
            for suffix, direction in (("", "forward"), ("_reverse", "backward"))
        }
        return torch.func.functional_call(lstm, names, line)[0]

    rows = along(grid.reshape(batch * height, width, features), "row").reshape(batch, height, width, -1)
    turned = grid.transpose(1, 2).reshape(batch * width, height, features)
    columns = along(turned, "column").reshape(batch, width, height, -1).transpose(1, 2)
    return torch.cat([rows, columns], dim=3)


def resize(scores, size, **options):
    return functional.interpolate(scores.permute(0, 3, 1, 2), size, mode="bilinear", **options).permute(0, 2, 3, 1)


case("linear_gelu", lambda x, weight, bias: functional.gelu(functional.linear(x, weight, bias)),
     x=torch.randn(2, 3, 20), weight=torch.randn(37, 20), bias=torch.randn(37))
case("layer_norm", lambda x, weight, bias: functional.layer_norm(x, (21,), weight, bias, 1e-6),
     x=torch.randn(2, 3, 21), weight=torch.randn(21), bias=torch.randn(21))
case("softmax", lambda x: x.softmax(-1), x=3 * torch.randn(2, 4, 21))
case("attention", attention, qkv=torch.randn(2, 19, 6 * 8))
shapes = {"weight_ih": (4 * UNITS, FEATURES), "weight_hh": (4 * UNITS, UNITS), "bias_ih": (4 * UNITS,), "bias_hh": (4 * UNITS,)}
lstm_parameters = {
    f"{line}_{direction}_{key}": 0.5 * torch.randn(shape)
    for line in ("row", "column")
    for direction in ("forward", "backward")
    for key, shape in shapes.items()
}
case("hv_bilstm", hv_bilstm, grid=torch.randn(2, 3, 4, FEATURES), **lstm_parameters)
case("max", lambda scores: scores.amax(dim=(1, 2)), scores=torch.randn(2, 3, 5, 7))
case("top_k", lambda scores: scores.flatten(1, 2).topk(4, dim=1).values.mean(dim=1), scores=torch.randn(2, 3, 5, 7))
case("enlarge_half_pixel", lambda scores: resize(scores, (9, 13), align_corners=False), scores=torch.randn(1, 4, 5, 3))
case("shrink_half_pixel", lambda scores: resize(scores, (3, 4), align_corners=False, antialias=True), scores=torch.randn(1, 7, 9, 3))
case("shrink_unfiltered", lambda scores: resize(scores, (3, 4), align_corners=False), scores=torch.randn(1, 7, 9, 3))
case("align_corners", lambda scores: resize(scores, (9, 3), align_corners=True), scores=torch.randn(1, 4, 5, 3))


def convolution(x, weight, residual, scale, shift, **window):
    """Channels last; the weight is [out, height, width, in]."""
    convolved = functional.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), **window)
    return functional.relu(convolved.permute(0, 2, 3, 1) * scale + shift + residual)


scale, shift = torch.randn(5), torch.randn(5)
tensors["conv_scale"], tensors["conv_shift"] = scale, shift
for name, kernel, size, window in [
    ("conv_entrance", 7, (5, 4), dict(stride=2, padding=3)),
    ("conv_pointwise", 1, (9, 8), dict()),
    ("conv_pointwise_stride", 1, (5, 4), dict(stride=2)),
    ("conv_atrous", 3, (9, 8), dict(padding=2, dilation=2)),
]:
    case(name, lambda x, weight, residual: convolution(x, weight, residual, scale, shift, **window),
         x=torch.randn(2, 9, 8, 3), weight=torch.randn(5, kernel, kernel, 3), residual=torch.randn(2, *size, 5))
case("max_pool", lambda x: functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1),
     x=torch.randn(2, 9, 8, 3).relu())
case("few_classes", lambda x, weight: functional.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2),
     padding=3, dilation=3).permute(0, 2, 3, 1), x=torch.randn(2, 7, 8, 6), weight=torch.randn(4, 3, 3, 6))
# TensorFlow's `same`: one pixel before the edge of an odd side, none before that of an even one.
case("max_pool_same", lambda x: functional.max_pool2d(functional.pad(x.permute(0, 3, 1, 2), (0, 2, 1, 1), value=-1e9),
     3, 2)[..., :4].permute(0, 2, 3, 1), x=torch.randn(2, 9, 8, 3))
case("max_pool_every", lambda x: functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 1, 1).permute(0, 2, 3, 1),
     x=torch.randn(2, 5, 6, 3))
for name, dilation in [("depthwise", 1), ("depthwise_atrous", 2)]:
    case(name, lambda x, weight: functional.conv2d(x.permute(0, 3, 1, 2), weight.permute(2, 0, 1)[:, None],
         padding=dilation, dilation=dilation, groups=6).permute(0, 2, 3, 1),
         x=torch.randn(2, 5, 7, 6), weight=torch.randn(3, 3, 6))
# Labels finer than the grid; the sixth is none.
LABELS = torch.arange(2 * 13 * 11).reshape(2, 13, 11) * 7 % 6
LABELS[LABELS == 5] = 255
case("cross_entropy", lambda logits: functional.cross_entropy(functional.interpolate(logits.permute(0, 3, 1, 2),
     size=(13, 11), mode="bilinear", align_corners=True), LABELS, ignore_index=255, reduction="none"),
     logits=torch.randn(2, 4, 5, 5))

save_file(tensors, pathlib.Path(__file__).with_name("ops.safetensors"))
