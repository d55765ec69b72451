"""The parts of benchmarks/step.py: emulated nodes, the model, candidates, ranks, the report."""
