"""lins: data-parallel training with parameters, gradients and optimizer state placed apart.

Without torch installed, meshes, layouts and planning are there; with it, everything else too.
"""

import importlib.util

from lins._planning import (
    Cluster,
    Layout,
    Mesh,
    ModelSpec,
    Partial,
    Plan,
    Profile,
    RedistributionPlan,
    Replicate,
    Report,
    Shard,
    Simulation,
    Unit,
    diff,
    explain_frontier,
    explain_table3,
    legal_plans,
    plan_redistribution,
    reproduce_table3,
)
from lins.errors import Infeasible, LinsError
from lins.inspection import inspect
from lins.planner import frontier, solve

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Infeasible",
    "Layout",
    "LinsError",
    "Mesh",
    "ModelSpec",
    "Partial",
    "Plan",
    "Profile",
    "RedistributionPlan",
    "Replicate",
    "Report",
    "Shard",
    "Simulation",
    "Unit",
    "diff",
    "explain_frontier",
    "explain_table3",
    "frontier",
    "inspect",
    "legal_plans",
    "plan_redistribution",
    "reproduce_table3",
    "solve",
]

if importlib.util.find_spec("torch") is not None:
    from lins import testing, torch_interop  # noqa: F401 - adds to_torch and from_torch
    from lins._core import (
        DTensor,
        distribute_tensor,
        empty,
        full,
        ones,
        rand,
        randn,
        zeros,
    )
    from lins.access import State, memory, micro_batch, states, unsharded
    from lins.description import describe
    from lins.guards import no_communication
    from lins.live import init_mesh
    from lins.optimizers import AdamW, clip_grad_norm_
    from lins.policy import Policy
    from lins.profiling.units import measure_units
    from lins.sharding import lins_shard, register_forward_method
    from lins.state_dict import state_dict
    from lins.tracing import TraceRecord, trace
    from lins.verification import verify
    from lins.watch import Watch

    __all__ += [
        "AdamW",
        "DTensor",
        "Policy",
        "State",
        "TraceRecord",
        "Watch",
        "clip_grad_norm_",
        "describe",
        "distribute_tensor",
        "empty",
        "full",
        "init_mesh",
        "lins_shard",
        "measure_units",
        "memory",
        "micro_batch",
        "no_communication",
        "ones",
        "rand",
        "randn",
        "register_forward_method",
        "state_dict",
        "states",
        "testing",
        "trace",
        "unsharded",
        "verify",
        "zeros",
    ]
