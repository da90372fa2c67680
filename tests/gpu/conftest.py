"""The small corpus of the tests of training."""

from tests.training.conftest import prepared_data

__all__ = ["prepared_data"]
