"""The knapsack behind a choice per unit, against HiGHS."""

import math
import random

import lins
import numpy as np
import pytest

highspy = pytest.importorskip("highspy")


def highs(classes, capacity):
    """The least cost by HiGHS, gap 0; None: infeasible."""
    items = [(k, w, c) for k, row in enumerate(classes) for w, c in row]
    n, rows = len(items), len(classes)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n, rows + 1
    lp.col_cost_ = np.array([c for _, _, c in items], dtype=float)
    lp.col_lower_, lp.col_upper_ = np.zeros(n), np.ones(n)
    lp.row_lower_ = np.array([1.0] * rows + [-math.inf])
    lp.row_upper_ = np.array([1.0] * rows + [float(capacity)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.arange(0, 2 * n + 1, 2)
    lp.a_matrix_.index_ = np.array([i for k, _, _ in items for i in (k, rows)])
    lp.a_matrix_.value_ = np.array([v for _, w, _ in items for v in (1.0, float(w))])
    lp.integrality_ = [highspy.HighsVarType.kInteger] * n
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    h.setOptionValue("threads", 1)
    h.setOptionValue("mip_rel_gap", 0.0)
    h.setOptionValue("mip_abs_gap", 1e-6)
    h.passModel(lp)
    h.run()
    if h.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None
    assert h.getModelStatus() == highspy.HighsModelStatus.kOptimal
    # Tolerances inside HiGHS must not decide: its choice is added up in whole numbers.
    chosen = [items[i] for i, x in enumerate(h.getSolution().col_value) if x > 0.5]
    assert [k for k, _, _ in chosen] == list(range(rows))
    assert sum(w for _, w, _ in chosen) <= capacity
    return sum(c for _, _, c in chosen)


def uncorrelated(rng):
    most = rng.choice([10, 100, 10_000])
    return [
        [(rng.randint(0, most), rng.randint(0, most)) for _ in range(rng.randint(1, 12))]
        for _ in range(rng.randint(1, 25))
    ]


def of_a_model(rng):
    """Classes of a few sizes; bytes and times of P, G and OS in 1 to 16 pieces, P <= G <= OS."""
    pieces = [1, 2, 4, 8, 16][: rng.randint(3, 5)]
    speeds = {k: rng.uniform(0.2, 5) for k in pieces}
    latency = rng.uniform(0, 50)
    kinds = []
    for _ in range(rng.randint(1, 4)):
        n = rng.randint(1, 400)
        kind = []
        for p in pieces:
            for g in pieces:
                for o in pieces:
                    if p <= g <= o:
                        weight = 16 * n // p * 2 + 16 * n // g * 2 + 16 * n // o * 12
                        cost = 8 * (latency * (p - 1) + speeds[p] * n * (p - 1) / p)
                        cost += 7 * (latency * (g - 1) + speeds[g] * n * (g - 1) / g)
                        cost += latency * (o - 1) + speeds[o] * n * (o - 1) / o
                        kind.append((weight, round(cost)))
        kinds.append(kind)
    return [rng.choice(kinds) for _ in range(rng.randint(2, 20))]


@pytest.mark.parametrize("make", [uncorrelated, of_a_model])
@pytest.mark.parametrize("seed", range(5))
def test_equals_highs(make, seed):
    rng = random.Random(seed)
    feasible = 0
    for _ in range(60):
        classes = make(rng)
        least = sum(min(w for w, _ in row) for row in classes)
        most = sum(max(w for w, _ in row) for row in classes)
        capacity = rng.randint(max(0, least - (most - least) // 10), most)
        answer = lins._planning.solve_knapsack(classes, capacity)
        want = highs(classes, capacity)
        assert (answer is None) == (want is None)
        if answer is None:
            continue
        choice, weight, cost = answer
        assert cost == want
        assert weight == sum(row[i][0] for row, i in zip(classes, choice, strict=True)) <= capacity
        assert cost == sum(row[i][1] for row, i in zip(classes, choice, strict=True))
        feasible += 1
    assert feasible > 30
