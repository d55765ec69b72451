"""Methods other than forward that compute with a unit's own parameters."""

import lins
import models
import pytest
import torch
from models import AXES


class Coder(models.Stack):
    def encode(self, x, scale=1.0):
        return torch.nn.functional.linear(x, self.inp.weight, self.inp.bias) * scale

    def decode_all(self, x):
        return self(x) + self(x)


def test_a_registered_method_has_whole_parameters_and_gradients():
    x = torch.ones(2, 3)
    reference = Coder()
    (reference.encode(x, scale=2.0) ** 2).sum().backward()

    def check(mesh, plan):
        model = lins.lins_shard(Coder(), mesh, plan)
        if plan == "zero3":
            with pytest.raises(RuntimeError, match="register_forward_method"):
                model.encode(x)
        lins.register_forward_method(model, "encode")
        y = model.encode(x, scale=2.0)
        assert torch.equal(y, reference.encode(x, scale=2.0))
        (y**2).sum().backward()
        grads = models.gradients(model)
        assert torch.allclose(grads["inp.weight"], reference.inp.weight.grad)
        with pytest.raises(ZeroDivisionError):
            model.encode(x, scale=1 / 0)
        models.backward(model, 0, mesh.rank)  # and a good step
        return grads

    for plan in ("ddp", "zero3", "hsdp"):
        lins.testing.run((2, 2), AXES, lambda mesh, plan=plan: check(mesh, plan))


def test_methods_that_only_call_modules_need_no_registration():
    x = torch.ones(2, 3)
    want = Coder().decode_all(x)

    def check(mesh):
        model = lins.lins_shard(Coder(), mesh, "zero3")
        with torch.no_grad():
            assert torch.equal(model.decode_all(x), want)

    lins.testing.run((2, 2), AXES, check)


def test_what_cannot_be_registered():
    def check(mesh):
        model = lins.lins_shard(Coder(), mesh, "zero3")
        with pytest.raises(lins.LinsError, match=r"Linear is no unit.*blocks\.0, blocks\.1"):
            lins.register_forward_method(model.head, "forward")
        with pytest.raises(lins.LinsError, match="no method 'translate'"):
            lins.register_forward_method(model, "translate")

    lins.testing.run((2, 2), AXES, check)
