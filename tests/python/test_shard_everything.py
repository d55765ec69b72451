"""Every plan, family, number of micro-batches, kind of unit, prefetch depth, with and without
overlap, and with delays before collectives, trains whole numbers like one process, bit for bit.

Each plan meets each family and each M; the other settings are drawn from a fixed seed, so that all
pairs of them come up.
"""

import itertools
import random
import zlib

import lins
import models
import pytest
from models import AXES, SIGN_DESCENT, text

SHAPES = [(2, 2), (1, 4), (4, 1), (2, 3)]


def cases(shape, family, micro_batches):
    """[(policy, options, seconds of delay by role)]: all plans of the space."""
    draw = random.Random(zlib.crc32(f"{shape} {family} {micro_batches}".encode()))
    space = "nested" if family == "paper" else "full"
    plans = dict.fromkeys(text(p) for p in lins.legal_plans(shape[1], shape[0], space=space))
    if family == "planned":  # where P stays between a forward and its backward
        plans |= dict.fromkeys(["zero++:1", f"zero++:{shape[1]}"])
    for plan in plans:
        options = {
            "family": family,
            "units": draw.choice(["block", "linear"]),
            "prefetch": draw.randrange(4),
            "overlap": draw.random() < 0.75,
            "overlap_update": draw.random() < 0.75,
        }
        roles = draw.sample(["gather", "reduce", "update"], draw.randrange(3))
        yield plan, options, {role: draw.choice([0.0005, 0.002]) for role in roles}


def train(mesh, plan, options, delays, micro_batches):
    draw = random.Random(mesh.rank)
    held = [
        lins.testing.delay(role=role, seconds=most * draw.random()) for role, most in delays.items()
    ]
    try:
        return models.train(
            mesh,
            plan,
            steps=2,
            micro_batches=micro_batches,
            whole=True,
            settings=SIGN_DESCENT,
            **options,
        )
    finally:
        for d in held:
            d.remove()


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("family", ["planned", "paper"])
def test_whole_numbers_train_bit_for_bit_whatever_is_chosen(family, shape, micro_batches):
    want_grads, want_params = models.train_alone(
        shape[0] * shape[1],
        steps=2,
        micro_batches=micro_batches,
        whole=True,
        settings=SIGN_DESCENT,
    )
    every = list(cases(shape, family, micro_batches))
    assert len(every) >= 10

    def check(mesh):
        return [train(mesh, *case, micro_batches) for case in every]

    for rank, results in enumerate(lins.testing.run(shape, AXES, check)):
        for case, (grads, params) in zip(every, results, strict=True):
            for step in range(2):
                models.assert_equal(grads[step], want_grads[step], f"{case} rank {rank}")
            models.assert_equal(params, want_params, f"{case} rank {rank}")


def test_the_settings_meet_in_all_pairs():
    seen = set()
    for family, shape, m in itertools.product(["planned", "paper"], SHAPES, [1, 2, 3, 8]):
        for _, options, _ in cases(shape, family, m):
            seen |= set(itertools.combinations(sorted(options.items(), key=str), 2))
    for a, b in itertools.combinations(
        [
            ("units", ("block", "linear")),
            ("prefetch", range(4)),
            ("overlap", (True, False)),
            ("overlap_update", (True, False)),
            ("family", ("planned", "paper")),
        ],
        2,
    ):
        for x, y in itertools.product(a[1], b[1]):
            pair = tuple(sorted([(a[0], x), (b[0], y)], key=str))
            assert pair in seen, pair
