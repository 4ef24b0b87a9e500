"""PyTorch's side for single operations: times them as crates/vitpcm-ops/examples/time_ops.rs does, and prints the same lines.

    RAYON_NUM_THREADS=2 python ops.py [BEGINNING_OF_A_NAME ...]
"""

import os
import statistics
import sys
import time

import torch
from torch.nn import functional


def operations():
    """Name -> (function without arguments, its floating point operations), as in `examples/time_ops.rs`."""
    left, right = torch.randn(2048, 2048), torch.randn(2048, 2048)
    table = {"product_2048": (lambda: functional.linear(left, right), 2 * 2048**3)}
    for tokens in (577, 3601):
        x, hidden = torch.randn(1, tokens, 384), torch.randn(1, tokens, 1536)
        weight, bias = torch.randn(1536, 384), torch.randn(1536)
        back, back_bias = torch.randn(384, 1536), torch.randn(384)
        scale, shift = torch.randn(384), torch.randn(384)
        qkv = torch.randn(1, tokens, 1152)
        leaf = qkv.clone().requires_grad_()
        product, pairs = 2 * tokens * 384 * 1536, 4 * tokens**2 * 384
        of_tokens = {
            "linear_384_1536": (lambda x=x, w=weight, b=bias: functional.linear(x, w, b), product),
            "linear_gelu_384_1536": (
                lambda x=x, w=weight, b=bias: functional.gelu(functional.linear(x, w, b)),
                product,
            ),
            "linear_1536_384": (lambda x=hidden, w=back, b=back_bias: functional.linear(x, w, b), product),
            "gelu_1536": (lambda x=hidden: functional.gelu(x), 0),
            "layer_norm_384": (lambda x=x, s=scale, b=shift: functional.layer_norm(x, (384,), s, b, 1e-6), 0),
            "attention": (lambda x=qkv: attention(x), pairs),
            "attention_backward": (lambda x=leaf: torch.autograd.grad(attention(x).sum(), x), 3.5 * pairs),
        }
        table |= {f"{name}_{tokens}": entry for name, entry in of_tokens.items()}
    rows = torch.nn.LSTM(384, 192, bidirectional=True, batch_first=True)
    columns = torch.nn.LSTM(384, 192, bidirectional=True, batch_first=True)
    parameters = [*rows.parameters(), *columns.parameters()]
    grid = torch.randn(1, 24, 24, 384)
    leaf = grid.clone().requires_grad_()

    def inference():
        with torch.no_grad():
            hv_bilstm(grid, rows, columns)

    def training():
        torch.autograd.grad(hv_bilstm(leaf, rows, columns).sum(), [leaf, *parameters])

    flops = 2 * 576 * 3072 * (384 + 192)
    return table | {"hv_bilstm_24": (inference, flops), "hv_bilstm_backward_24": (training, 3 * flops)}


def attention(qkv):
    """As timm's ViT does it: [B, N, 3 D] -> [B, N, D], six heads."""
    batch, tokens, packed = qkv.shape
    query, key, value = qkv.reshape(batch, tokens, 3, 6, packed // 18).permute(2, 0, 3, 1, 4).unbind(0)
    mixed = functional.scaled_dot_product_attention(query, key, value)
    return mixed.transpose(1, 2).reshape(batch, tokens, packed // 3)


def hv_bilstm(grid, rows, columns):
    """[B, H, W, D] -> [B, H, W, 4 U]."""
    batch, height, width, features = grid.shape
    along_rows = rows(grid.reshape(batch * height, width, features))[0].reshape(batch, height, width, -1)
    turned = grid.transpose(1, 2).reshape(batch * width, height, features)
    along_columns = columns(turned)[0].reshape(batch, width, height, -1).transpose(1, 2)
    return torch.cat([along_rows, along_columns], dim=3)


def median_milliseconds(run):
    run()
    times, begin = [], time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begin < 0.5 and len(times) < 100):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main():
    torch.set_num_threads(int(os.environ["RAYON_NUM_THREADS"]))
    wanted = sys.argv[1:]
    for name, (run, flops) in operations().items():
        if not wanted or any(name.startswith(beginning) for beginning in wanted):
            milliseconds = median_milliseconds(run)
            print(f"{name} {milliseconds:.3f} ms {flops / milliseconds / 1e6:.1f} GFLOP/s", flush=True)


if __name__ == "__main__":
    main()
