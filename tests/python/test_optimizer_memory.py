"""Bytes of every optimizer: what the planner counts is what a rank holds."""

import lins
import pytest
from lins._planning import moment_bytes
from models import AXES
from torch import nn

MADE = {
    "adamw": lambda m: lins.AdamW(m),
    "adam": lambda m: lins.Adam(m),
    "amsgrad": lambda m: lins.AdamW(m, amsgrad=True),
    "sgd": lambda m: lins.SGD(m),
    "sgd_momentum": lambda m: lins.SGD(m, momentum=0.9),
    "lion": lambda m: lins.Lion(m),
    "adamw8bit": lambda m: lins.AdamW8bit(m),
    "adafactor": lambda m: lins.Adafactor(m),
    "muon": lambda m: lins.Muon(m),
}


@pytest.mark.parametrize("name", MADE)
def test_a_rank_holds_what_the_planner_counts(name):
    n = 256  # a matrix of n x n on four ranks

    def check(mesh):
        out = []
        for plan in ("ddp", "zero1"):
            model = lins.lins_shard(nn.Linear(n, n, bias=False), mesh, plan)
            MADE[name](model)
            out.append(lins.memory(model)["optim"])
        return out

    for ddp, zero1 in lins.testing.run((2, 2), AXES, check):
        for held, parameters in ((ddp, n * n), (zero1, n * n // 4)):
            counted = moment_bytes(name) * parameters
            extra = {"adamw8bit": 2 * parameters // 256, "adafactor": 4 * 2 * n}.get(name, 0)
            assert held == counted + extra


def test_the_planner_prices_an_optimizer_by_name():
    def optim(**options):
        spec = lins.ModelSpec(units=[lins.Unit("x", 8_000_000)], **options)
        cluster = lins.Cluster(nodes=1, gpus_per_node=8)
        plan = lins.Plan.uniform(spec, cluster, param=(1, 1), grad=(1, 1), optim=(8, 1))
        return plan.memory["optim"]

    assert optim() == optim(optimizer="adamw") == 12_000_000
    assert optim(optimizer="adamw8bit") == 6_000_000  # masters and 2 bytes: 16 -> 10 in all
    assert optim(optimizer="lion", state_bytes={"master": 0}) == 4_000_000
    llama = lins.ModelSpec.llama("7B", optimizer="adamw8bit")
    assert repr(llama) == repr(lins.ModelSpec.llama("7B"))
    with pytest.raises(lins.LinsError, match="unknown optimizer 'adamax': legal are adamw, "):
        optim(optimizer="adamax")
    with pytest.raises(lins.LinsError, match="leave 'moments' out"):
        optim(optimizer="lion", state_bytes={"moments": 4})
    with pytest.raises(lins.LinsError, match="adamax"):
        lins.Policy(optimizer="adamax")


def test_a_smaller_optimizer_lets_a_model_fit_without_cutting_further():
    spec = {o: lins.describe(nn.Linear(1000, 1000), optimizer=o) for o in ("adamw", "adamw8bit")}
    cluster = lins.Cluster(nodes=1, gpus_per_node=4)
    quota = {"cap_bytes": int(1.03 * (1_001_000 * 10.5 + (256 << 20)))}
    plans = {o: lins.solve(s, cluster, objective="comm", **quota) for o, s in spec.items()}
    assert plans["adamw8bit"].factors["optim"] == (1, 1)
    assert plans["adamw"].factors["optim"] != (1, 1)
