"""What planning refuses from Python: settings, factors, models, clusters; and what fits nowhere."""

import lins
import pytest

GB = 10**9


@pytest.fixture(scope="module")
def spec():
    return lins.ModelSpec.llama("7B", seq_len=4096, micro_batch=1)


@pytest.fixture(scope="module")
def cluster():
    return lins.Cluster(nodes=4, gpus_per_node=8, profile="a800")


def test_infeasible_says_what_would_do(spec, cluster):
    with pytest.raises(lins.Infeasible) as e:
        lins.solve(spec, cluster, cap_bytes=1 * GB)
    assert isinstance(e.value, lins.LinsError)
    assert isinstance(e.value, ValueError)
    least = e.value.least_bytes
    assert len(e.value.largest) == 4
    assert lins.solve(spec, cluster, cap_bytes=least).memory["total"] == least
    with pytest.raises(lins.Infeasible):
        lins.solve(spec, cluster, cap_bytes=least - 1)
    items = lins.solve(spec, cluster, cap_bytes=least).memory
    assert all(items[k] == v for k, v in e.value.largest.items())


BAD = {
    "micro_batches": [0, -1, 2**40, 1.5, "4", None],
    "objective": ["fast", 3],
    "space": ["everything", 3],
    "family": ["other"],
    "cap_bytes": [0, -5, 2**62, 1e9, "80G"],
    "uniform": ["maybe"],
    "tie_epsilon": [-0.1, 1.0, float("nan"), "x"],
    "bucket_bytes": [0, 2**62],
    "scales": [[(1,)], [(0, 1)], [(1.5, 2)], [(1, 2, 0.0)], [(1, 2, float("inf"))], 7, "ab"],
    "prefetch": [-1, 10**6],
    "margin": [-1.0, 10.0, float("nan")],
    "gathered_units": [0],
    "gradient_buckets": [-1],
    "communicator_bytes": [-1, 2**62],
    "correction_bytes": [2**62, "x"],
    "global_tokens": [1, -4096, "x"],
    "nonsense": [1],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, vs in BAD.items() for v in vs])
def test_bad_settings_are_named(spec, cluster, key, value):
    with pytest.raises((lins.LinsError, TypeError)) as e:
        lins.solve(spec, cluster, **{key: value})
    name = {"scales": "scale", "micro_batches": ""}.get(key, key)
    assert name in str(e.value)


@pytest.mark.parametrize(
    "factors",
    [
        {},
        {"param": 1},
        {"param": 1, "grad": 1},
        {"param": 1, "grad": 1, "optim": 3},
        {"param": 8, "grad": 1, "optim": 1},
        {"param": (1, 2), "grad": (8, 2), "optim": (8, 2)},
        {"param": (1, 1, 1), "grad": (1, 1), "optim": (1, 1)},
        {"param": (), "grad": (1, 1), "optim": (1, 1)},
        {"param": "a", "grad": 1, "optim": 1},
        {"param": 1.5, "grad": 1, "optim": 1},
        {"param": 2**70, "grad": 1, "optim": 1},
        {"policy": "zero7"},
        {"policy": 5},
        {"policy": "zero1", "param": 1},
        {"param": 1, "grad": 1, "optim": 1, "between": 8},
        {"policy": "zero1", "nonsense": 2},
    ],
)
def test_bad_factors_are_errors(spec, cluster, factors):
    with pytest.raises((lins.LinsError, TypeError)):
        lins.Plan.uniform(spec, cluster, **factors)


@pytest.mark.parametrize(
    "make",
    [
        lambda: lins.ModelSpec([]),
        lambda: lins.ModelSpec("abc"),
        lambda: lins.ModelSpec([lins.Unit("u", 0)]),
        lambda: lins.ModelSpec([lins.Unit("u", 1), lins.Unit("u", 1)]),
        lambda: lins.ModelSpec([lins.Unit("u", 2**60)]),
        lambda: lins.ModelSpec([lins.Unit("u", 1)], seq_len=0),
        lambda: lins.ModelSpec([lins.Unit("u", 1)], recompute="half"),
        lambda: lins.ModelSpec([lins.Unit("u", 1)], state_bytes={"momentum": 1}),
        lambda: lins.ModelSpec([lins.Unit("u", 1)], state_bytes={"param": "two"}),
        lambda: lins.ModelSpec([lins.Unit("u", 1)], state_bytes=12),
        lambda: lins.ModelSpec.llama("8B"),
        lambda: lins.ModelSpec.llama("7B", vocabulary=10),
        lambda: lins.ModelSpec.llama("x", hidden=10),
        lambda: lins.ModelSpec.llama("x", hidden=-1, layers=1, ffn=1),
        lambda: lins.Cluster(nodes=0, gpus_per_node=8),
        lambda: lins.Cluster(nodes=1, gpus_per_node=8, profile="nowhere"),
        lambda: lins.Cluster(nodes=1, gpus_per_node=8, profile=3),
        lambda: lins.Cluster(nodes=1, gpus_per_node=8, quota_bytes=2**50),
        lambda: lins.Cluster(nodes=1, gpus_per_node=8, tensor_parallel=3),
        lambda: lins.Cluster(nodes=3, gpus_per_node=8, pipeline_parallel=2),
        lambda: lins.Cluster(nodes=2, gpus_per_node=4),
    ],
)
def test_absurd_models_and_clusters_are_errors(make):
    with pytest.raises((lins.LinsError, TypeError)) as e:
        make()
    assert str(e.value)
