"""The small corpus of the tests of training; deterministic products on a card."""

import os

from tests.training.conftest import prepared_data

__all__ = ["prepared_data"]

# cuBLAS reads it once: before a test uses CUDA without `deterministic=true`.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
