"""Loss scaling, clipping without a pass of its own, norms by group, rounding."""

import lins
import models
import pytest
import torch
from models import ADAM, AXES, Stack
from optimizers import PLANS, Flat, alone
from torch import nn


def test_gradscaler_skips_on_all_ranks_counts_and_backs_off():
    want = alone(lambda m: torch.optim.AdamW(m.parameters(), **ADAM), steps=2)

    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero2")
        opt = lins.AdamW(model, **ADAM)
        scaler = lins.GradScaler(init_scale=16.0, growth_interval=2)
        scales = []
        for step, bad in [(0, False), (7, True), (1, False), (2, None)]:
            if bad is None:
                break
            loss = scaler.scale(model.loss(step, mesh.rank))
            (loss * float("inf") if bad and mesh.rank == 3 else loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            scales.append(scaler.get_scale())
        return scales, opt.skipped_steps, models.parameters(model)

    for scales, skipped, parameters in lins.testing.run((2, 2), AXES, check):
        assert scales == [16.0, 8.0, 8.0]
        assert skipped == 1
        models.assert_equal(parameters, want)


def test_unscale_then_clip_then_step_is_torchs():
    reference = Flat()
    opt = torch.optim.SGD(reference.parameters(), lr=0.5)
    for rank in range(4):
        reference.loss(0, rank).backward()
    for p in reference.parameters():
        p.grad /= 4
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    opt.step()
    want = models.clone(reference.named_parameters())

    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero3")
        opt = lins.SGD(model, lr=0.5)
        scaler = lins.GradScaler(init_scale=2.0**12)
        scaler.scale(model.loss(0, mesh.rank)).backward()
        scaler.unscale_(opt)
        with pytest.raises(RuntimeError, match="unscale_"):
            scaler.unscale_(opt)
        got = lins.clip_grad_norm_(model, 1.0)
        scaler.step(opt)
        with pytest.raises(lins.LinsError, match="update"):
            scaler.step(opt)
        scaler.update()
        return got, models.parameters(model), scaler.state_dict()["scale"]

    for got, parameters, scale in lins.testing.run((2, 2), AXES, check):
        torch.testing.assert_close(got, norm, rtol=1e-6, atol=0)
        models.assert_close(parameters, want)
        assert scale == 2.0**12


def test_fp16_gradients_too_small_to_keep_are_saved_by_the_scale():
    tiny = 2.0**-20 / 64

    def check(mesh):
        out = []
        for scale in (1.0, 2.0**12):
            model = nn.Linear(8, 1, bias=False)
            nn.init.zeros_(model.weight)
            lins.lins_shard(model, mesh, "zero1", param_dtype=torch.float16)
            opt = lins.SGD(model, lr=1.0)
            scaler = lins.GradScaler(init_scale=scale)
            loss = model(torch.full((1, 8), tiny * 2.0**8)).sum() * 2.0**-8
            scaler.scale(loss).backward()
            scaler.step(opt)
            out.append(lins.states(model)["weight"].master.full_tensor())
        return out

    for lost, kept in lins.testing.run((1, 2), AXES, check):
        assert not lost.any()
        assert torch.equal(kept, torch.full((1, 8), -tiny))


def test_torchs_gradscaler_is_refused_by_name():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        opt, scaler = lins.AdamW(model), torch.amp.GradScaler("cpu")
        scaler.scale(model.loss(0, mesh.rank)).backward()
        with pytest.raises(lins.LinsError, match=r"lins\.GradScaler"):
            scaler.step(opt)

    lins.testing.run((1, 2), AXES, check)


def test_gradscaler_treats_other_optimizers_as_torch_does():
    p = nn.Parameter(torch.ones(2))
    opt, scaler = torch.optim.SGD([p], lr=1.0), lins.GradScaler(init_scale=4.0)
    scaler.scale((p * 3).sum()).backward()
    scaler.step(opt)
    scaler.update()
    assert p.tolist() == [-2.0, -2.0]


# --- clipping


def test_states_and_later_clips_see_clipped_gradients_before_the_update():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero3")
        opt = lins.SGD(model, lr=1.0)
        model.loss(0, mesh.rank).backward()
        whole = models.gradients(model)
        norm = lins.clip_grad_norm_(model, 1.0).item()
        assert norm > 1
        assert lins.clip_grad_norm_(model, 100.0).item() == pytest.approx(1.0, rel=1e-5)
        inf = lins.clip_grad_norm_(model, 100.0, float("inf")).item()
        assert inf == pytest.approx(max(g.abs().max().item() for g in whole.values()) / norm)
        for name, g in models.gradients(model).items():
            torch.testing.assert_close(g, whole[name] / norm)
        before = models.parameters(model)
        opt.step()
        for name, p in models.parameters(model).items():
            torch.testing.assert_close(before[name] - p, whole[name] / norm)

    lins.testing.run((2, 2), AXES, check)


def test_clipping_of_one_step_does_not_touch_the_next():
    def check(mesh):
        model = lins.lins_shard(Flat(), mesh, "zero1")
        opt = lins.SGD(model, lr=0.0)
        out = []
        for _ in range(2):  # the second without zero_grad
            model.loss(0, mesh.rank).backward()
            out.append(lins.clip_grad_norm_(model, 1.0).item())
        opt.zero_grad()
        model.loss(0, mesh.rank).backward()
        out.append(lins.clip_grad_norm_(model, 1.0).item())
        return out

    for norms in lins.testing.run((1, 2), AXES, check):
        assert norms == [norms[0]] * 3


def test_norms_by_group_count_each_element_once():
    names = [["first.bias", "blocks.0.weight"], ["blocks.1.weight"]]

    def check(mesh):
        out = []
        for plan in PLANS:
            model = lins.lins_shard(Flat(), mesh, plan)
            opt = lins.AdamW(model, param_groups=[{"params": n} for n in names])
            assert [n.item() for n in opt.grad_norms()] == [0, 0, 0]
            model.loss(0, mesh.rank).backward()
            grads = models.gradients(model)
            rest = [n for n in grads if n not in {*names[0], *names[1]}]
            for kind in (1.0, 2.0, float("inf")):
                with lins.trace() as t:
                    got = opt.grad_norms(kind)
                assert len(t.records) == 1
                for norm, group in zip(got, [*names, rest], strict=True):
                    want = torch.cat([grads[n].flatten() for n in group]).norm(kind)
                    torch.testing.assert_close(norm, want, rtol=1e-6, atol=0)
            lins.clip_grad_norm_(model, 1.0)
            out.append(sum(n.item() ** 2 for n in opt.grad_norms()))
        return out

    for totals in lins.testing.run((2, 2), AXES, check):
        assert totals == pytest.approx([1.0] * len(PLANS), rel=1e-5)


# --- lower precision


@pytest.mark.parametrize("rule", ["AdamW", "SGD", "Lion", "AdamW8bit", "Adafactor", "Muon"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_are_the_rounded_masters_after_every_step(rule, dtype):
    def check(mesh):
        for plan in ("ddp", "zero1", "zero3"):
            model = lins.lins_shard(Stack(), mesh, plan, param_dtype=dtype)
            opt = getattr(lins, rule)(model, lr=0.01)
            for step in range(2):
                models.backward(model, step, mesh.rank)
                opt.step()
                opt.zero_grad()
                for name, s in lins.states(model).items():
                    assert torch.equal(s.param.full_tensor(), s.master.full_tensor().to(dtype)), (
                        plan,
                        name,
                    )

    lins.testing.run((1, 2), AXES, check)


def test_stochastic_rounding_keeps_the_mean_and_agrees_over_ranks_and_layouts():
    def check(mesh):
        out = []
        for plan in ("ddp", "zero1", "zero3", "hsdp"):
            model = nn.Linear(100, 100, bias=False)
            nn.init.constant_(model.weight, 1.0)
            lins.lins_shard(model, mesh, plan, param_dtype=torch.bfloat16)
            opt = lins.SGD(model, lr=1.0, rounding="stochastic", seed=5)
            model(torch.full((1, 100), -(2.0**-9))).sum().backward()
            opt.step()
            s = lins.states(model)["weight"]
            # 1 + 2^-9: a quarter of the way from 1 to the next bf16 number.
            assert (s.master.full_tensor() == 1 + 2.0**-9).all()
            out.append(s.param.full_tensor().float())
        return out

    results = lins.testing.run((2, 2), AXES, check)
    for by_plan in results:
        for got in by_plan:
            assert torch.equal(got, results[0][0])
    got = results[0][0]
    assert set(got.unique().tolist()) == {1.0, 1 + 2.0**-7}
    # 10,000 draws with p = 1/4: five standard deviations are 0.022.
    assert abs((got > 1).float().mean().item() - 0.25) < 0.022


def test_bf16_with_masters_follows_an_fp64_reference():
    # Gradients are whole numbers, so bf16 holds them: all error is of the update.
    reference = Flat().double()
    opt = torch.optim.AdamW(reference.parameters(), **ADAM)
    grads = [Flat() for _ in range(5)]
    for step in range(5):
        for rank in range(4):
            grads[step].loss(step, rank).backward()
        for p, g in zip(reference.parameters(), grads[step].parameters(), strict=True):
            p.grad = (g.grad / 4).bfloat16().double()
        opt.step()
    want = models.clone(reference.named_parameters())

    def check(mesh):
        model = lins.lins_shard(
            Flat(), mesh, "zero3", param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
        mine = lins.AdamW(model, **ADAM)
        for step in range(5):
            model.loss(step, mesh.rank).backward()
            mine.step()
            mine.zero_grad()
        return {n: s.master.full_tensor() for n, s in lins.states(model).items()}

    for masters in lins.testing.run((2, 2), AXES, check):
        models.assert_close(masters, want)
