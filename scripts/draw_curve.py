#!/usr/bin/env python3
"""A run's curve: loss and validation mIoU over its steps. Plain Python, nothing to install.

    python scripts/draw_curve.py RUN/metrics.csv curve.svg
"""

import csv
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 320, 56, 56, 28, 44
LOSS, MIOU = "#4c78a8", "#1b9e3f"


def main():
    source, target = sys.argv[1:]
    with open(source, newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [(int(row["step"]), float(row["loss"])) for row in rows]
    scores = [(int(row["step"]), float(row["val_miou"])) for row in rows if row["val_miou"]]
    # The first steps of a new classifier would flatten all others.
    highest = 1.05 * sorted(loss for _, loss in losses)[int(0.95 * (len(losses) - 1))]
    last = losses[-1][0]
    low, high = 0, 100

    def x(step):
        return LEFT + step / last * (WIDTH - LEFT - RIGHT)

    def y(share):
        return TOP + (1 - min(share, 1)) * (HEIGHT - TOP - BOTTOM)

    def text(left, top, words, colour="#333", anchor="middle"):
        return f'<text x="{left:.1f}" y="{top:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'

    parts = []
    for quarter in range(5):
        height = y(quarter / 4)
        parts.append(f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        parts.append(text(LEFT - 8, height + 4, f"{quarter / 4 * highest:.2f}", LOSS, "end"))
        parts.append(text(WIDTH - RIGHT + 8, height + 4, f"{low + quarter / 4 * (high - low):.0f}", MIOU, "start"))
        parts.append(text(x(quarter / 4 * last), HEIGHT - BOTTOM + 18, f"{quarter / 4 * last:.0f}"))
    points = " ".join(f"{x(step):.1f},{y(loss / highest):.1f}" for step, loss in losses)
    parts.append(f'<polyline points="{points}" fill="none" stroke="{LOSS}" stroke-opacity="0.7"/>')
    points = [(x(step), y((score - low) / (high - low)), score) for step, score in scores]
    parts.append(f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b, _ in points)}" fill="none" stroke="{MIOU}"/>')
    for left, top, score in points:
        parts.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3.5" fill="{MIOU}"/>' + text(left, top - 9, f"{score:.1f}", MIOU))
    parts.append(text(LEFT, 16, "loss", LOSS) + text(WIDTH - RIGHT, 16, "val mIoU, %", MIOU))
    parts.append(text(WIDTH / 2, HEIGHT - 8, "step"))
    style = 'font-family="sans-serif" font-size="12"'
    with open(target, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>\n')
        file.write('<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()
