"""`python -m specserve.backends` compiles what a first start would, and says what it chose."""

import logging

import torch

from specserve.backends.choose import choose_backend

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    choose_backend(torch.device("cpu"))
