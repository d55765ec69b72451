"""What a profile depends on: versions, machines, topology."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import torch
import torch.distributed as dist

import lins


def describe(mesh: lins.Mesh, dtype: str) -> dict[str, str]:
    """The environment of all ranks, the same on each. Collective."""
    here = {"host": socket.gethostname(), "cores": _cores(), "device": _device(mesh.backend)}
    everyone: list[dict[str, str]] = [{}] * mesh.size
    dist.all_gather_object(everyone, here)

    def distinct(key: str) -> str:
        return ", ".join(dict.fromkeys(x[key] for x in everyone))

    nodes, gpus = mesh.shape
    out = {
        "lins": lins.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "backend": mesh.backend,
        "dtype": dtype,
        "topology": f"{nodes} nodes x {gpus} ranks",
        "hosts": distinct("host"),
        "devices": distinct("device"),
        "cores": distinct("cores"),
    }
    if mesh.backend == "nccl":
        out["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO"):
        if value := os.environ.get(name):
            out[name] = value
    return out


def _cores() -> str:
    if hasattr(os, "sched_getaffinity"):
        return str(len(os.sched_getaffinity(0)))
    return str(os.cpu_count())


def _device(backend: str) -> str:
    if backend == "nccl":
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
