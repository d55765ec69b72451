"""lins_shard: turns a module into one whose states are placed by a policy."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lins import _core, _planning
from lins.errors import LinsError, LinsValueError
from lins.materialize import check_meta, materialize_buffers, materializer
from lins.pending import Updates, await_updates
from lins.policy import Policy, resolve
from lins.state_dict import add_state_dict_hooks

UnitRule = str | Callable[[nn.Module], bool]


Hooks = tuple[Callable[..., Any], Callable[..., Any]]  # before and after a forward


class Handle:
    """What a wrapped model carries: the executor, and which unit holds which parameter."""

    def __init__(
        self, core: _core.ShardedModel, names: dict[str, nn.Parameter], unit_names: list[str]
    ) -> None:
        self.core = core
        self.names = names
        self.name_of = {id(p): name for name, p in names.items()}  # tied ones by their first
        self.unit_of: dict[int, int] = {}  # id(parameter) -> unit
        self.unit_names = unit_names  # of their modules; "" is the root
        self.hooks: dict[int, Hooks] = {}  # by id(module) of a unit
        self.updates = Updates(core)


def handle_of(model: nn.Module) -> Handle:
    """The handle of a wrapped model, or of a module inside one. Raises LinsError for others."""
    if handle := getattr(model, "_lins_handle", None):
        return handle
    for p in model.parameters():
        if (known := getattr(p, "_lins_handle", None)) and (handle := known()):
            return handle
    raise LinsValueError(
        f"{type(model).__name__} is not wrapped: call lins_shard(model, mesh, policy) first"
    )


def lins_shard(
    model: nn.Module,
    mesh: _core.LiveMesh,
    policy: object,
    units: UnitRule = "block",
    family: str = "planned",
    overlap: bool = True,
    prefetch: int | None = None,
    param_dtype: torch.dtype | None = None,
    grad_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    init: str = "broadcast",
    cast_inputs: bool = True,
    overlap_update: bool = True,
    init_fn: Callable[[nn.Module], None] | None = None,
    seed: int = 0,
    offload_optimizer: bool | None = None,
    offload_chunk_bytes: int | None = None,
) -> nn.Module:
    """Places the states of a model's parameters over a mesh; returns the same module.

    Args:
        model: any module on the mesh's device. Its parameters become views of flat buffers.
            On the meta device (built under `with torch.device("meta"):`) it is given memory and
            values unit by unit, so that no rank ever holds all of it.
        mesh: from lins.init_mesh, or the one that lins.testing.run passes.
        policy: a preset ("ddp", "zero1", "zero2", "zero3", "fsdp2", "hsdp", "mics:8", "zero++:8",
            "megatron:8", "paro-nig", "paro-iig", "paro-igg"); factors ("P=1 G=4x1 OS=8x1", also
            "between=8x1": where P stays from a forward to its backward; G may be in fewer pieces
            than P); lins.Policy(param=, grad=, optim=) or, to solve now, without factors; or a
            lins.Plan of lins.solve(), whose profile then also chooses among collectives.
        units: what is gathered and reduced together: "block" (elements of nn.ModuleLists), "linear"
            (every nn.Linear), or a function module -> bool. What no unit holds is the root's.
        family: "planned": each state moves by the redistribution of fewest received bytes, or
            with a Plan of the least time. "paper": gradients by bucketed all-reduces of which a
            rank keeps its part, updated parameters by broadcasts from their owners.
        overlap: communicate while computing.
        prefetch: how many units are gathered ahead; default: as many as the plan counts on, or 1.
        param_dtype: of P, e.g. torch.bfloat16; masters stay fp32. Default: as the parameter is.
        grad_dtype: accumulation of gradients. Default: param_dtype.
        reduce_dtype: in which gradients are sent. Default: grad_dtype.
        init: "broadcast" gives every rank rank 0's values; "check" raises when ranks differ.
        cast_inputs: with param_dtype, cast floating-point inputs of units to it.
        overlap_update: with overlap, updated parameters travel during the next forward; False:
            the optimizer's step waits for them.
        init_fn: gives values to the parameters and buffers that a module itself holds, for models
            built on the meta device. Default: the module's reset_parameters().
        seed: of those values, which depend on it and on the module's name alone, not on ranks,
            units or policy.
        offload_optimizer: OS, masters included, is in host memory (pinned where the model is on a
            GPU), and optimizers update it in chunks, which are copied in and back meanwhile. The
            device holds three chunks in place of OS. Default: as the plan or lins.Policy says.
            Where parameters are their own masters, those stay on the device.
        offload_chunk_bytes: of one chunk, default 32 MiB or the plan's.

    Collective: every rank passes the same. Gradients become the mean over ranks and micro-batches.

    Raises:
        LinsError: on every rank, for what cannot be done, or when ranks disagree.
    """
    if not isinstance(mesh, _core.LiveMesh):
        raise LinsValueError(
            f"{mesh!r} has no processes behind it: use lins.init_mesh, or lins.testing.run"
        )
    # A rank that finds a mistake must not leave the others waiting: all compare first.
    try:
        _check(model, init, param_dtype, grad_dtype, reduce_dtype)
        plan = find_units(model, units)
        check_meta(model, plan, init_fn)
        if isinstance(policy, Policy) and not policy.fixed:
            policy = _solve(model, mesh, policy, units, param_dtype, grad_dtype)
        resolved = resolve(policy, mesh, family, [name for name, _, _ in plan])
        said = str(resolved)
        error: LinsError | None = None
    except LinsError as e:
        error = e
        said = f"{policy!s}, an error: {e}"
    mesh.world.check_agreement("the policy", said)
    if error is not None:
        raise error

    core = _core.ShardedModel(
        mesh,
        [
            (name, params, placement, materializer(model, params, init_fn, seed))
            for (name, _, params), placement in zip(plan, resolved.placements, strict=True)
        ],
        overlap=overlap,
        prefetch=resolved.prefetch if prefetch is None else prefetch,
        check_init=init == "check",
        param_dtype=param_dtype,
        grad_dtype=grad_dtype,
        reduce_dtype=reduce_dtype,
        profile=resolved.profile,
        overlap_update=overlap_update,
        family=resolved.family,
        bucket_bytes=resolved.bucket_bytes,
        gradient_buckets=resolved.gradient_buckets,
        offload_optimizer=resolved.offload if offload_optimizer is None else offload_optimizer,
        offload_chunk_bytes=(
            resolved.offload_chunk_bytes if offload_chunk_bytes is None else offload_chunk_bytes
        ),
    )
    handle = Handle(core, dict(model.named_parameters()), [name for name, _, _ in plan])
    materialize_buffers(model, init_fn, seed)
    _share_buffers(model, mesh)
    cast = param_dtype if cast_inputs else None
    for index, (_, module, params) in enumerate(plan):
        for _, p in params:
            # Weak: the executor holds the parameters, which the garbage collector does not see.
            p._lins_handle = weakref.ref(handle)
            handle.unit_of[id(p)] = index
        module._lins_handle = handle
        handle.hooks[id(module)] = _hook(core, index, module, cast)
    add_state_dict_hooks(model, handle, [module for _, module, _ in plan])
    model._lins_handle = handle
    if overlap and overlap_update:
        whole = {unit for unit, p, trainable in core.plans() if trainable and not p.gather.steps}
        awaited = {
            i: u for i, u in handle.unit_of.items() if (handle.unit_names[u] or "root") in whole
        }
        await_updates(model, handle.updates, awaited)
    return model


def _solve(
    model: nn.Module,
    mesh: _core.LiveMesh,
    policy: Policy,
    units: UnitRule,
    param_dtype: torch.dtype | None,
    grad_dtype: torch.dtype | None,
) -> _planning.Plan:
    """The plan that a policy without factors asks for."""
    from lins.description import describe

    first = next(model.parameters(), torch.empty(0))
    param = param_dtype or first.dtype
    grad = grad_dtype or param
    spec = describe(
        model,
        policy.sample,
        units=units,
        state_bytes={
            "param": param.itemsize,
            "grad": grad.itemsize,
            "master": 0 if param == first.dtype else first.dtype.itemsize,
            "moments": _planning.moment_bytes(policy.optimizer) * first.dtype.itemsize // 4,
        },
    )
    return policy.solve(spec, mesh, _memory_bytes(first.device, mesh.shape[-1]))


def _memory_bytes(device: torch.device, ranks_of_node: int) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks_of_node


def _check(model: nn.Module, init: str, *dtypes: torch.dtype | None) -> None:
    if not isinstance(model, nn.Module):
        raise LinsValueError(f"{type(model).__name__} is no torch.nn.Module")
    for p in model.parameters():
        if hasattr(p, "_lins_handle"):
            raise LinsValueError(
                f"{type(model).__name__} is wrapped already, in whole or in part: "
                "a module is wrapped once"
            )
    if init not in ("broadcast", "check"):
        raise LinsValueError(f"init={init!r}: legal are 'broadcast' and 'check'")
    for dtype in dtypes:
        if dtype is not None and (
            not isinstance(dtype, torch.dtype) or not dtype.is_floating_point
        ):
            raise LinsValueError(f"{dtype} is no dtype for states: legal are floating-point dtypes")


def find_units(
    model: nn.Module, rule: UnitRule
) -> list[tuple[str, nn.Module, list[tuple[str, nn.Parameter]]]]:
    """[(name, module, its parameters by name)], the root first, in the order of the modules."""
    if rule == "block":
        modules = dict(_list_elements(model, "", False))
    elif rule == "linear":
        modules = {n: m for n, m in model.named_modules() if n and isinstance(m, nn.Linear)}
    elif callable(rule):
        modules = {n: m for n, m in model.named_modules() if n and rule(m)}
    else:
        raise LinsValueError(
            f"units={rule!r}: legal are 'block', 'linear' and a function module -> bool"
        )
    owner = {id(m): n for n, m in modules.items()}
    homes: dict[int, set[str]] = {}  # parameter -> units that use it

    def visit(module: nn.Module, unit: str) -> None:
        unit = owner.get(id(module), unit)
        for p in module.parameters(recurse=False):
            homes.setdefault(id(p), set()).add(unit)
        for child in module.children():
            visit(child, unit)

    visit(model, "")
    units: dict[str, list[tuple[str, nn.Parameter]]] = {"": [], **{n: [] for n in modules}}
    for name, p in model.named_parameters():
        home = homes[id(p)]
        # Shared by several units: complete whenever the root computes.
        units[next(iter(home)) if len(home) == 1 else ""].append((name, p))
    return [
        (name, modules.get(name, model), params)
        for name, params in units.items()
        if params or not name
    ]


def _list_elements(module: nn.Module, prefix: str, in_list: bool):
    for key, child in module.named_children():
        name = f"{prefix}.{key}" if prefix else key
        is_list = isinstance(child, nn.ModuleList)
        if in_list and not is_list:
            yield name, child
        else:
            yield from _list_elements(child, name, is_list)


def _share_buffers(model: nn.Module, mesh: _core.LiveMesh) -> None:
    for b in model.buffers():
        if b.numel() and b.device.type != "meta":
            b.copy_(_core.distribute_tensor(b, mesh, "R", src_rank=0).to_local())


def _hook(
    core: _core.ShardedModel, index: int, module: nn.Module, cast: torch.dtype | None
) -> Hooks:
    """Gathers before the forward, frees after; marks where the backward begins and ends.

    Returns the two hooks, for methods that are to be treated like forward.
    """

    def enter(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if cast is not None:
            tensors = [t.to(cast) if t.is_floating_point() else t for t in tensors]
        return core.enter_unit(index, tensors)

    def before(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        core.pre_forward(index)
        if not kwargs and all(isinstance(x, torch.Tensor) for x in args):
            return tuple(enter(list(args))), kwargs  # at a tenth of the general case's cost
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        tensors = enter([leaves[i] for i in places])
        for i, t in zip(places, tensors, strict=True):
            leaves[i] = t
        return pytree.tree_unflatten(leaves, spec)

    def after(_: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        outputs = [output] if isinstance(output, torch.Tensor) else pytree.tree_leaves(output)
        core.leave_unit(index, [x for x in outputs if isinstance(x, torch.Tensor)])
        try:
            core.post_forward(index)
        except LinsError:
            if output is not None:  # None: the forward itself has failed and says why
                raise

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, with_kwargs=True, always_call=True)
    return before, after


def register_forward_method(module: nn.Module, name: str) -> None:
    """Makes a method of a unit (or of the wrapped model itself) work like its forward.

    While the method runs, the unit's own parameters are complete; gradients through its tensor
    arguments and results are handled as those of forward. Methods that only call modules, such as
    `generate` of a model whose forward does the computing, need it not.

        lins.register_forward_method(model, "encode")
        z = model.encode(x)

    Collective when the method is called. Raises LinsError for modules that are no unit.
    """
    handle = handle_of(module)
    hooks = handle.hooks.get(id(module))
    if hooks is None:
        raise LinsValueError(
            f"{type(module).__name__} is no unit: legal are the wrapped model and the modules "
            f"{', '.join(handle.unit_names[1:])}"
        )
    method = getattr(module, name, None)
    if not callable(method):
        raise LinsValueError(f"{type(module).__name__} has no method {name!r}")
    before, after = hooks

    @functools.wraps(method)
    def forward_method(*args: Any, **kwargs: Any) -> Any:
        output = None
        args, kwargs = before(module, args, kwargs)
        try:
            output = method(*args, **kwargs)
            return output
        finally:
            after(module, args, kwargs, output)

    setattr(module, name, forward_method)
