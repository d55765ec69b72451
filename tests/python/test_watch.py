"""lins.Watch: a delayed collective is reported on all ranks alike, and nothing else is."""

import json
import time

import lins
import pytest
import torch
from torch import nn

OPS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all2all")
AXES = ("node", "gpu")


def constant(seconds, gpus=2, ranks=("2", "4")):
    """A profile in which everything takes as long."""
    points = {str(2**k): seconds for k in range(4, 24)}
    doc = {"source": "test", "gpus_per_node": gpus, "latency_s": {}}
    doc["latency_s"] = {op: dict.fromkeys(ranks, points) for op in OPS}
    return lins.Profile.from_json(json.dumps(doc), "constant")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def train(mesh, profile, steps, before=None, policy="P=2 G=2 OS=4", **options):
    """Reports of step() by step, and the watch."""
    torch.manual_seed(0)
    model = lins.lins_shard(Net(), mesh, policy, overlap_update=False)
    opt = lins.AdamW(model, lr=1e-3)
    news = []
    with lins.Watch(profile, model, **options) as watch:
        for step in range(1, steps + 1):
            if before:
                before(mesh, step)
            model(torch.ones(2, 16)).sum().backward()
            opt.step()
            opt.zero_grad()
            news.append(watch.step())
    return news, watch


# Without a delay, threads exchange a few bytes in far less than 0.1 s and more than 0.1 us: with
# this profile and factor only the injected delays are beyond.
PROFILE, FACTOR, DELAY = 1e-4, 1000.0, 0.15


def slow_gathers_from(first):
    def before(mesh, step):
        if step == first and mesh.rank == 1:
            context = lins._core.RankContext.current()
            context.add_delay("all_gather", "", "gather", DELAY)

    return before


@pytest.mark.parametrize("window, patience, every", [(2, 2, 1), (4, 1, 2)])
def test_a_slow_link_is_reported_on_all_ranks_alike(window, patience, every):
    calls = []

    def fn(mesh):
        news, watch = train(
            mesh, constant(PROFILE), 10, slow_gathers_from(4), factor=FACTOR, window=window,
            patience=patience, every=every, callback=lambda d: calls.append((mesh.rank, d)),
        )  # fmt: skip
        return news, watch.drifted, str(watch.report()), watch.report().to_dict()

    results = lins.testing.run((2, 2), AXES, fn)
    assert all(r == results[0] for r in results)
    news, drifted, text, report = results[0]
    said = [d for step in news for d in step]
    assert said, text
    assert {(d.op, d.role, d.gpus, d.nodes) for d in said} == {("all_gather", "gather", 2, 1)}
    assert not any(news[:3])  # before the delay
    for d in said:
        assert d.drifted and d.ratio > FACTOR and d.since >= 4 and d.checks == patience
        assert d.measured == pytest.approx(d.expected * d.ratio) and d.measured > DELAY
    assert drifted and "drifted since step" in text
    assert report["fallback"] == "zero3" and "conservative policy: zero3" in text
    assert sorted(rank for rank, _ in calls) == [0, 1, 2, 3]
    assert all(d == said for _, d in calls)


def test_only_the_ranks_that_wait_least_count():
    """A late rank is no slow link: the last to come waits for nobody."""

    def fn(mesh):
        def late(mesh, step):
            if mesh.rank == 3:
                time.sleep(DELAY)

        news, watch = train(
            mesh, constant(PROFILE), 5, late, factor=FACTOR, window=1, patience=1, every=1
        )
        return any(news), str(watch.report())

    for drifted, text in lins.testing.run((2, 2), AXES, fn):
        assert not drifted, text


def test_faster_than_the_profile_is_a_drift_too():
    def fn(mesh):
        news, watch = train(mesh, constant(100.0), 4, factor=10.0, window=1, patience=2, every=1)
        return news, watch.drifted

    for news, drifted in lins.testing.run((2, 2), AXES, fn):
        assert not news[0] and not news[1] and news[2]
        assert {d.role for d in drifted} == {"gather", "reduce", "update"}
        assert all(d.ratio < 0.1 for d in drifted)


def test_samples_are_measured_between_steps():
    def fn(mesh):
        options = dict(window=2, patience=2, every=2, source="sample", probe_seconds=0.01)
        news, watch = train(mesh, constant(PROFILE), 8, slow_gathers_from(99), factor=FACTOR,
                            **options)  # fmt: skip
        assert not any(news)
        report = watch.report()
        assert {r.op for r in report.rows} == {"all_gather", "reduce_scatter"}
        assert all(0 < r.measured < 0.1 for r in report.rows)

        def slow(mesh, step):
            if step == 3 and mesh.rank == 2:  # of whatever unit: probes are of none
                lins._core.RankContext.current().add_delay("all_gather", "", "gather", DELAY)

        news, watch = train(mesh, constant(PROFILE), 8, slow, factor=FACTOR, **options)
        return [d.op for d in watch.drifted]

    for drifted in lins.testing.run((2, 2), AXES, fn):
        assert set(drifted) == {"all_gather"}


def test_ranks_that_did_not_do_the_same_are_not_compared():
    def fn(mesh):
        watch = lins.Watch(constant(PROFILE), mesh, window=1, patience=1, every=1, factor=FACTOR)
        record = lins.TraceRecord("all_gather", "gather", "", "gpu", [0, 1], 64, 32, 0, 1, 0, 0)
        watch.step()
        watch._records = lambda: [record] * (2 if mesh.rank else 1)
        assert watch.step() == []
        watch._records = lambda: [record._replace(end=1.0 + mesh.rank)]
        assert [d.op for d in watch.step()] == ["all_gather"]
        report = watch.report()
        watch.close()
        return report

    for report in lins.testing.run((2, 2), AXES, fn):
        assert (report.checks, report.skipped) == (2, 1)
        # Of the groups (0, 1) and (2, 3) each waited least on its first rank; the second is slower.
        assert report.rows[0].measured == pytest.approx(3.0)
        assert "1 checks compared nothing" in str(report)


def test_recovery_ends_a_drift():
    def fn(mesh):
        watch = lins.Watch(constant(1.0), mesh, window=1, patience=2, every=1, factor=2.0)
        record = lins.TraceRecord("all_gather", "gather", "", "gpu", [0, 1], 64, 32, 0, 1, 0, 0)
        watch.step()
        seen = []
        for seconds in (3.0, 3.0, 3.0, 1.5, 3.0, 0.4, 3.0):
            watch._records = lambda s=seconds: [record._replace(end=s)]
            seen.append((len(watch.step()), len(watch.drifted)))
        watch.close()
        return seen

    for seen in lins.testing.run((1, 2), AXES, fn):
        assert seen == [(0, 0), (1, 1), (0, 1), (0, 0), (0, 0), (1, 1), (0, 1)]


def test_the_window_is_all_that_is_kept():
    def fn(mesh):
        _, watch = train(
            mesh, constant(PROFILE), 12, window=3, every=2, factor=FACTOR, policy="zero3"
        )
        return [len(s.samples) for s in watch._seen.values()]

    for lengths in lins.testing.run((1, 2), AXES, fn):
        assert lengths and all(n <= 3 for n in lengths)


def test_the_fallback_is_the_first_zero_stage_that_fits():
    spec = lins.ModelSpec.llama("7B", seq_len=2048)

    def plan(cap):
        cluster = lins.Cluster(2, 2, memory_bytes=cap, profile=constant(PROFILE))
        return lins.Plan.uniform(spec, cluster, policy="zero3")

    def fallback(watched):
        def fn(mesh):
            with lins.Watch(watched, mesh) as watch:
                return watch.fallback

        (only,) = set(lins.testing.run((2, 2), AXES, fn))
        return only

    stages = ("zero1", "zero2", "zero3")
    needs = [plan(10**12).what_if(policy=p).memory["total"] for p in stages]
    assert needs == sorted(needs, reverse=True)
    assert [fallback(plan(n)) for n in needs] == list(stages)
    assert fallback(plan(needs[-1] // 2)) == "zero3"  # the least that there is


def test_one_rank_has_nothing_to_watch():
    def fn(mesh):
        news, watch = train(mesh, constant(PROFILE), 4, every=1, policy="ddp")
        return any(news), watch.report().rows

    assert lins.testing.run((1, 1), AXES, fn) == [(False, [])]


@pytest.mark.parametrize(
    "options, why",
    [
        ({"factor": 1.0}, "factor is 1.0, must be more than 1"),
        ({"window": 0}, "window is 0, must be at least 1"),
        ({"every": -1}, "every is -1"),
        ({"source": "guess"}, "source='guess': legal are 'trace' and 'sample'"),
    ],
)
def test_mistakes(options, why):
    def fn(mesh):
        with pytest.raises(lins.LinsError, match=why):
            lins.Watch(constant(PROFILE), mesh, **options)

    lins.testing.run((1, 2), AXES, fn)


def test_more_mistakes():
    def fn(mesh):
        with pytest.raises(lins.LinsError, match="neither a file"):
            lins.Watch("h100", mesh)
        with pytest.raises(
            lins.LinsError, match="mesh 2x2 on profile 'constant': legal are 1 to 1"
        ):
            lins.Watch(constant(PROFILE, gpus=1), mesh)
        with pytest.raises(lins.LinsError, match="is not wrapped"):
            lins.Watch("a800", nn.Linear(2, 2))
        watch = lins.Watch("a800", mesh)
        watch.close()
        with pytest.raises(lins.LinsError, match="this watch is closed"):
            watch.step()

    lins.testing.run((2, 2), AXES, fn)
