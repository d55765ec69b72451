"""Settings of the whole suite."""

import torch

# Ranks are threads: more threads inside operators would only get in each other's way.
torch.set_num_threads(1)
