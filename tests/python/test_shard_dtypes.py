"""Parameters in double precision, bf16 and fp16; masters; sums in another dtype."""

import lins
import models
import torch
from agreement import agree, everywhere, whole_stack
from models import ADAM, AXES, SIGN_DESCENT, Stack, shard
from torch import nn


def test_double_precision_parameters():
    options = {"steps": 2, "settings": ADAM}
    _, want = models.train_alone(4, **options)

    def loss(model, rank):
        x, y = models.batch(0, 0, rank)
        return models.loss_of(model, x.double(), y.double())

    def check(mesh, plan):
        model = shard(Stack().double(), mesh, plan)
        opt = lins.AdamW(model, **ADAM)
        loss(model, mesh.rank).backward()
        opt.step()
        return models.parameters(model)

    model = Stack().double()
    opt = torch.optim.AdamW(model.parameters(), **ADAM)
    for rank in range(4):
        (loss(model, rank) / 4).backward()
    opt.step()
    want = models.clone(model.named_parameters())
    for results in everywhere(check, plans=["ddp", "zero3"]):
        for plan, got in results.items():
            models.assert_close(got, want, plan, tolerance=1e-14)


def test_bf16_parameters_keep_fp32_masters():
    def check(mesh, plan):
        model = shard(Stack(), mesh, plan, param_dtype=torch.bfloat16)
        opt = lins.AdamW(model, **ADAM)
        start = models.clone(Stack().named_parameters())
        masters = {n: s.master.full_tensor() for n, s in lins.states(model).items()}
        models.assert_equal(masters, start)
        for step in range(3):
            x, y = models.batch(step, 0, mesh.rank)
            out = model(x)
            assert out.dtype == torch.bfloat16
            nn.functional.mse_loss(out.float(), y).backward()
            opt.step()
        states = lins.states(model)
        for s in states.values():
            assert (s.param.dtype, s.master.dtype) == (torch.bfloat16, torch.float32)
            assert s.exp_avg.dtype == torch.float32
            assert torch.equal(s.param.full_tensor(), s.master.full_tensor().bfloat16())
        return {n: s.master.full_tensor().clone() for n, s in states.items()}

    # The same casts in one process: bf16 working copies of fp32 masters, fp32 sums of bf16
    # gradients.
    masters = Stack()
    work = Stack().bfloat16()
    opt = torch.optim.AdamW(masters.parameters(), **ADAM)
    for step in range(3):
        for p in masters.parameters():
            p.grad = torch.zeros_like(p)
        for rank in range(4):
            x, y = models.batch(step, 0, rank)
            nn.functional.mse_loss(work(x.bfloat16()).float(), y).backward()
            for p, w in zip(masters.parameters(), work.parameters(), strict=True):
                p.grad += w.grad.float() / 4
                w.grad = None
        opt.step()
        with torch.no_grad():
            for p, w in zip(masters.parameters(), work.parameters(), strict=True):
                w.copy_(p)
    want = models.clone(masters.named_parameters())
    for results in everywhere(check):
        for plan, got in results.items():
            # Gradients are summed in bf16 (grad_dtype's default), 8 bits: updates of 0.01 agree to
            # some 2^-6.
            models.assert_close(got, want, plan, tolerance=1e-3)


def test_fp32_accumulation_of_bf16_gradients_is_exact():
    def check(mesh, plan):
        model = shard(
            whole_stack(), mesh, plan, param_dtype=torch.bfloat16, grad_dtype=torch.float32
        )
        for m in range(4):
            with lins.micro_batch(model, index=m, count=4, divisor=1):
                # The gradient of the head's bias is the sum of y: 257 needs 9 bits.
                out = model(torch.zeros(1, 3))
                (out.float() * (1 if m else 257)).sum().backward()
        return {"bias": lins.states(model)["head.bias"].grad.full_tensor()}

    # 257 is rounded to 256 in one bf16 gradient; the sum 4 * (256 + 3) = 1036 needs fp32.
    agree(check, lambda: {"bias": torch.tensor([1036.0, 1036.0])})


def test_fp16_and_bf16_models_train_in_their_own_dtype():
    def check(mesh):
        out = []
        for dtype in (torch.bfloat16, torch.float16):
            model = shard(whole_stack().to(dtype), mesh, "zero2")
            opt = lins.AdamW(model, **SIGN_DESCENT)
            x, y = models.batch(0, 0, mesh.rank, True)
            (model(x.to(dtype)) * y).sum().backward()
            opt.step()
            s = lins.states(model)["head.bias"]
            out.append((s.param.dtype == dtype, s.master.dtype))
        return out

    assert lins.testing.run((2, 2), AXES, check) == [[(True, torch.float32)] * 2] * 4
