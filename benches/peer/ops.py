"""Times the operations of vitpcm-ops and PyTorch's eager ones in turns and prints a table of ratios.

    cargo build --release -p vitpcm-ops --examples
    python benches/peer/ops.py [--rounds 5] [--threads 2] [name ...]

Needs PyTorch. Same sizes, same threads, f32, one side at a time; each side takes the median of its calls in a round,
the table the median over rounds. A ratio below 1 says that vitpcm-ops is faster.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import time

import torch
from torch.nn import functional

EXAMPLE = pathlib.Path(__file__).parents[2] / "target/release/examples/time_ops"


def operations():
    """Name -> function without arguments, at the sizes of `examples/time_ops.rs`."""
    table = {}
    for tokens in (577, 3601):
        x, hidden = torch.randn(1, tokens, 384), torch.randn(1, tokens, 1536)
        weight, bias = torch.randn(1536, 384), torch.randn(1536)
        back, back_bias = torch.randn(384, 1536), torch.randn(384)
        scale, shift = torch.randn(384), torch.randn(384)
        qkv = torch.randn(1, tokens, 1152)
        leaf = qkv.clone().requires_grad_()
        table |= {
            f"linear_384_1536_{tokens}": lambda x=x, w=weight, b=bias: functional.linear(x, w, b),
            f"linear_gelu_384_1536_{tokens}": lambda x=x, w=weight, b=bias: functional.gelu(functional.linear(x, w, b)),
            f"linear_1536_384_{tokens}": lambda x=hidden, w=back, b=back_bias: functional.linear(x, w, b),
            f"gelu_1536_{tokens}": lambda x=hidden: functional.gelu(x),
            f"layer_norm_384_{tokens}": lambda x=x, s=scale, b=shift: functional.layer_norm(x, (384,), s, b, 1e-6),
            f"attention_{tokens}": lambda x=qkv: attention(x),
            f"attention_backward_{tokens}": lambda x=leaf: torch.autograd.grad(attention(x).sum(), x),
        }
    rows = torch.nn.LSTM(384, 192, bidirectional=True, batch_first=True)
    columns = torch.nn.LSTM(384, 192, bidirectional=True, batch_first=True)
    parameters = [*rows.parameters(), *columns.parameters()]
    grid = torch.randn(1, 24, 24, 384)
    leaf = grid.clone().requires_grad_()

    def inference():
        with torch.no_grad():
            hv_bilstm(grid, rows, columns)

    table["hv_bilstm_24"] = inference
    table["hv_bilstm_backward_24"] = lambda: torch.autograd.grad(
        hv_bilstm(leaf, rows, columns).sum(), [leaf, *parameters]
    )
    return table


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


def ours(names, threads):
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    output = subprocess.run([EXAMPLE, *names], env=environment, check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in output.splitlines()]
    return {fields[0]: float(fields[1]) for fields in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("names", nargs="*", help="only operations whose names begin so")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    peers = {
        name: run
        for name, run in operations().items()
        if not arguments.names or any(name.startswith(wanted) for wanted in arguments.names)
    }
    rounds = []
    for _ in range(arguments.rounds):
        mine = ours(arguments.names, arguments.threads)
        theirs = {name: median_milliseconds(run) for name, run in peers.items()}
        rounds.append((mine, theirs))
    print(f"{'operation':32} {'vitpcm-ops':>11} {'PyTorch':>11} {'ratio':>6}  spread of the ratio")
    for name in peers:
        mine = [mine[name] for mine, _ in rounds]
        theirs = [theirs[name] for _, theirs in rounds]
        ratios = [a / b for a, b in zip(mine, theirs)]
        print(
            f"{name:32} {statistics.median(mine):8.2f} ms {statistics.median(theirs):8.2f} ms "
            f"{statistics.median(ratios):6.2f}  {min(ratios):.2f}-{max(ratios):.2f}"
        )


if __name__ == "__main__":
    main()
