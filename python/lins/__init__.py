"""lins: data-parallel training with parameters, gradients and optimizer state placed apart."""

from lins._planning import (
    Layout,
    Mesh,
    Partial,
    RedistributionPlan,
    Replicate,
    Shard,
    legal_plans,
    plan_redistribution,
)
from lins.errors import Infeasible, LinsError

__version__ = "0.1.0"
