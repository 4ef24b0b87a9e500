#!/usr/bin/env python3
"""The paper's cost figure: parameters against mIoU on PASCAL VOC 2012. Plain Python, nothing to install.

    python scripts/draw_cost.py        # docs/cost.csv -> docs/pictures/cost.svg

A star is a method's masks before any refinement, a square the network trained on its final masks; a line joins the two.
A row without mIoU is not drawn.
"""

import csv
import math
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"

# Millions of parameters, classifiers of ImageNet included where the network has one.
SIZES = {
    "VGG16": 138.4,
    "ResNet38": 105.0,  # the wide ResNet-38 of PSA and SEAM, without a classifier: counted layer by layer
    "ResNet50": 25.6,
    "ResNet101": 44.5,
    "DeiT-S": 22.1,
    "MiT-B1": 13.7,
    "ViT-PCM-S16": 23.60,  # these three with HV-BiLSTM and classifier: `vitpcm model inspect`
    "ViT-PCM-B16": 89.06,
    "ViT-PCM-DINOv2-S14": 23.85,
}
COLOURS = {"other": "#4c78a8", "paper": "#d62728", "ours": "#1b9e3f"}

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 24, 56
X_RANGE, Y_RANGE = (11, 330), (49, 74)


def x_of(millions):
    share = math.log(millions / X_RANGE[0]) / math.log(X_RANGE[1] / X_RANGE[0])
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y_of(miou):
    return HEIGHT - BOTTOM - (miou - Y_RANGE[0]) / (Y_RANGE[1] - Y_RANGE[0]) * (HEIGHT - TOP - BOTTOM)


def star(x, y, size=7):
    points = []
    for corner in range(10):
        radius = size if corner % 2 == 0 else 0.42 * size
        angle = math.pi * (corner / 5 - 0.5)
        points.append(f"{x + radius * math.cos(angle):.1f},{y + radius * math.sin(angle):.1f}")
    return f'points="{" ".join(points)}"'


def read_points():
    with open(DOCS / "cost.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["miou"]:
                millions = sum(SIZES[name] for name in row["networks"].split("+"))
                yield row["method"], row["whose"], row["result"], x_of(millions), y_of(float(row["miou"]))


def overlaps(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def placed_label(width, x, y, taken):
    """Where a label starts: the first free place near a point, right, left, then further away."""
    for dy in (4, -8, 16, -20, 28, -32, 40):
        for left in (x + 10, x - 10 - width):
            box = (left - 1, y + dy - 10, left + width + 1, y + dy + 3)
            if box[2] < WIDTH - 4 and not any(overlaps(box, other) for other in taken):
                taken.append(box)
                return left, y + dy
    return x + 10, y + 4


def main():
    points = list(read_points())
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        '<title>Parameters against mIoU on PASCAL VOC 2012</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for millions in (12, 25, 50, 100, 200):
        x = x_of(millions)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#333">{millions}</text>')
    for miou in range(50, 75, 5):
        y = y_of(miou)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#333">{miou}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle" fill="#333">millions of parameters (logarithmic)</text>')
    out.append(f'<text transform="translate(18 {HEIGHT / 2}) rotate(-90)" text-anchor="middle" fill="#333">mIoU in %</text>')

    by_method = {}
    for method, whose, result, x, y in points:
        by_method.setdefault(method, (whose, {}))[1][result] = (x, y)
    for whose, results in by_method.values():
        if len(results) == 2:
            (x1, y1), (x2, y2) = results["masks"], results["segmentation"]
            out.append(
                f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{COLOURS[whose]}" stroke-opacity="0.25"/>'
            )
    taken = [(x - 7, y - 7, x + 7, y + 7) for *_, x, y in points]
    for method, whose, result, x, y in points:
        if result == "masks":
            out.append(f'<polygon {star(x, y)} fill="{COLOURS[whose]}"/>')
        else:
            out.append(
                f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="#fff" stroke="{COLOURS[whose]}" stroke-width="2"/>'
            )
    # Ours and the paper's first: they get the places beside their points.
    for method, whose, result, x, y in sorted(points, key=lambda point: point[1] == "other"):
        letter, style = (6.2, 'font-size="11"') if whose == "other" else (7.4, 'font-weight="bold"')
        width = letter * len(method)
        left, base = placed_label(width, x, y, taken)
        anchor, at = ("end", left + width) if left < x else ("start", left)
        out.append(
            f'<text x="{at:.1f}" y="{base:.1f}" text-anchor="{anchor}" fill="{COLOURS[whose]}" {style}>{escape(method)}</text>'
        )

    legend = [("★ masks before refinement", "#333"), ("□ network trained on the final masks", "#333")]
    legend += [("other methods", COLOURS["other"]), ("the paper", COLOURS["paper"]), ("this program", COLOURS["ours"])]
    for line, (text, colour) in enumerate(legend):
        out.append(f'<text x="{WIDTH - 260}" y="{HEIGHT - BOTTOM - 90 + 18 * line}" fill="{colour}">{escape(text)}</text>')
    out.append("</svg>")
    (DOCS / "pictures/cost.svg").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
