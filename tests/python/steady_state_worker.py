"""Trains 1,000 steps on two ranks as threads, under each policy that is given, and prints what the
process holds on the way, as JSON.

Used by test_shard_steady_state.py, in an interpreter of its own.
"""

import ctypes
import gc
import json
import os
import sys
import threading
import time

import lins
import models
import torch
from models import AXES

CHECKPOINTS = (100, 200, 400, 600, 800, 1000)


class Mallinfo(ctypes.Structure):
    NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]


def heap_bytes():
    """Handed out by malloc, in all of its arenas."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def resident_bytes():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def observe(policy, family):
    """What is held after so many steps."""
    barrier = threading.Barrier(2, timeout=60)
    seen = []
    batches = [[models.batch(0, m, rank) for m in range(2)] for rank in range(2)]

    def check(mesh):
        model = lins.lins_shard(models.Stack(), mesh, policy, family=family)
        opt = lins.AdamW(model, lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)
        start, last = time.process_time(), 0
        for step in range(1, CHECKPOINTS[-1] + 1):
            for m, (x, y) in enumerate(batches[mesh.rank]):
                with lins.micro_batch(model, index=m, count=2):
                    models.loss_of(model, x, y).backward()
            lins.clip_grad_norm_(model, 1.0)
            opt.step()
            schedule.step()
            opt.zero_grad()
            if step % 50 == 0:  # what is done now and then
                with lins.trace() as t:
                    models.loss_of(model, x, y)
                assert len(t.records) < 20
                with lins.unsharded(model):
                    float(model.head.bias.detach().sum())
                lins.states(model)
            if step in CHECKPOINTS:
                seconds, done = time.process_time() - start, step - last
                last = step
                with lins.unsharded(model):
                    pass  # no update is under way
                barrier.wait()
                if mesh.rank == 0:
                    gc.collect()
                    held = {k: v for k, v in lins.memory(model).items() if "peak" not in k}
                    seen.append(
                        {
                            "step": step,
                            "cpu": seconds / done,
                            "objects": len(gc.get_objects()),
                            "blocks": sys.getallocatedblocks(),
                            "heap": heap_bytes(),
                            "resident": resident_bytes(),
                            "held": held,
                        }
                    )
                barrier.wait()
                start = time.process_time()

    lins.testing.run((1, 2), AXES, check, timeout=60.0)
    return seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([observe(*p.split("/")) for p in sys.argv[1:]]))
