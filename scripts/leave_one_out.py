#!/usr/bin/env python3
"""Chooses the exponents of the score that ranks heads on all data sets but one, and measures them on that one.

    scripts/leave_one_out.py HEADS.csv HEADS.csv HEADS.csv [...]

Each file is what `vitpcm-lab heads` wrote of one data set. The exponents with the smallest mean regret are chosen, ties
by rank correlation. Regret: mIoU of the best head less that of the chosen one. The given masks take no part. CSV on stdout.
"""

import csv
import sys
from itertools import groupby
from pathlib import Path

GIVEN = "the given masks"
MIN_AREA = 1e-4
AREA_POWERS = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1]
RECOGNISABILITY_POWERS = [1, 2, 3, 4, 6, 8]
# Those of ChoiceConfig::default() in crates/vitpcm-heads/src/choice.rs.
DEFAULT = (0.2, 4)


def read_heads(path):
    """Of each head the true mIoU and, per class, AUC, area and share of empty masks."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["candidate"] != GIVEN]
    heads = []
    for _, rows in groupby(rows, key=lambda row: row["candidate"]):
        rows = list(rows)
        classes = [[float(row[key]) for key in ("auc", "area", "empty")] for row in rows]
        heads.append((float(rows[0]["miou"]), classes, float(rows[0]["score"])))
    return heads


def score(classes, area_power, recognisability_power):
    def of_class(auc, area, empty):
        recognisability = max(0.0, 2 * auc - 1) ** recognisability_power
        return max(area, MIN_AREA) ** area_power * recognisability * (1 - empty)

    return sum(of_class(*values) for values in classes) / len(classes)


def ranks(values):
    """Ranks from 0, the mean rank among equals."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def spearman(left, right):
    left, right = ranks(left), ranks(right)
    middle = (len(left) - 1) / 2
    product = sum((a - middle) * (b - middle) for a, b in zip(left, right))
    squares = [sum((a - middle) ** 2 for a in side) for side in (left, right)]
    return product / (squares[0] * squares[1]) ** 0.5 if all(squares) else 0.0


def measure(heads, exponents):
    """Regret and rank correlation of a set's heads."""
    scores = [score(classes, *exponents) for _, classes, _ in heads]
    mious = [miou for miou, _, _ in heads]
    chosen = mious[scores.index(max(scores))]
    return max(mious) - chosen, spearman(scores, mious)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sets = {Path(path).stem: read_heads(path) for path in sys.argv[1:]}
    for name, heads in sets.items():
        for _, classes, written in heads:
            if abs(score(classes, *DEFAULT) - written) > 2e-3:
                sys.exit(f"{name}: a score of {written} where the formula gives {score(classes, *DEFAULT):.4f}")
    grid = [(area, recognisability) for area in AREA_POWERS for recognisability in RECOGNISABILITY_POWERS]
    table = {pair: {name: measure(heads, pair) for name, heads in sets.items()} for pair in grid}

    def best_without(left_out):
        def loss(pair):
            others = [values for name, values in table[pair].items() if name != left_out]
            return mean(regret for regret, _ in others), -mean(correlation for _, correlation in others)

        return min(grid, key=loss)

    print("left out,best head,area power,recognisability power,regret,spearman,regret of default,spearman of default")
    for name, heads in sets.items():
        pair = best_without(name)
        found, default = table[pair][name], table[DEFAULT][name]
        best = max(miou for miou, _, _ in heads)
        print(f"{name},{best:.1f},{pair[0]},{pair[1]},{found[0]:.1f},{found[1]:.2f},{default[0]:.1f},{default[1]:.2f}")


main()
