"""What processes on this machine's CPU compute with."""

import torch

from specserve.backends.choose import choose_backend

CPU = torch.device("cpu")
BACKEND = choose_backend(CPU)
