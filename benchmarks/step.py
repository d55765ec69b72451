"""How long a training step takes: lins beside torch's DDP, ZeRO, FSDP2 and HSDP.

    sudo .venv/bin/python benchmarks/step.py                   # 1, 4, unlimited Gbit/s; M = 1, 4
    sudo .venv/bin/python benchmarks/step.py --rates 1 --micro-batches 1 --rounds 5
    .venv/bin/python benchmarks/step.py --one-host             # no rights needed, no link
    .venv/bin/python benchmarks/step.py --overhead             # one process, nothing to send

Two network namespaces are the nodes, joined by a link of limited rate; each runs two processes
over Gloo. In every round of a run each candidate has one turn, in rotated order: a step to get
going, then some that are timed together. All candidates train their own copy of one model on the
same batches, and their losses must agree. Bytes are those that the nodes' interfaces count.
"""

from training.cli import main

if __name__ == "__main__":
    main()
