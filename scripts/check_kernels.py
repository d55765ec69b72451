"""Checks that a CUDA build holds every kernel of kernels/*.cu for every architecture.

python scripts/check_kernels.py build-cuda 80 90 100
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Prints a table; exit code 1 where a kernel is missing."""
    build, architectures = Path(sys.argv[1]), sys.argv[2:]
    wanted = kernels_in_sources()
    (library,) = build.glob("python/lins/_core*.so")
    found = kernels_in(library, wanted)
    missing = [
        f"{name} for sm_{a}" for name in wanted for a in architectures if name not in found[a]
    ]
    print(f"{library.relative_to(build)}: {len(wanted)} kernels for {len(architectures)} devices")
    for name in wanted:
        print(f"  {name:24}", *(f"sm_{a}: {found[a].get(name, 0)}" for a in architectures))
    if missing:
        sys.exit("missing: " + ", ".join(missing))


def kernels_in_sources() -> list[str]:
    """The names of all __global__ functions."""
    names = []
    for source in sorted((_ROOT / "kernels").glob("*.cu*")):
        text = source.read_text()
        names += re.findall(r"__global__ void\s+(?:__launch_bounds__\(\w+\)\s+)?(\w+)\(", text)
    return names


def kernels_in(library: Path, names: list[str]) -> dict[str, dict[str, int]]:
    """By architecture and name: how many instances of a kernel the library has."""
    out = subprocess.run(
        [cuobjdump(), "-symbols", str(library)], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    architecture = ""
    for line in out.splitlines():
        if m := re.match(r"arch\s*=\s*sm_(\d+)", line):
            architecture = m[1]
        elif m := re.search(r"STT_FUNC\s+.*STO_ENTRY\s+(\S+)", line):
            for name in names:
                found[architecture][name] += f"{len(name)}{name}" in m[1]  # as names are mangled
    return found


def cuobjdump() -> str:
    """The tool, of the toolkit or of a wheel."""
    import sysconfig

    wheels = Path(sysconfig.get_path("purelib")) / "nvidia"
    for candidate in [Path("/usr/local/cuda/bin/cuobjdump"), *wheels.glob("*/bin/cuobjdump")]:
        if candidate.exists():
            return str(candidate)
    return "cuobjdump"


if __name__ == "__main__":
    main()
