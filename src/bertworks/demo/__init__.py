"""The demo: from text to predictions, with nothing but this package and Python itself."""

from .cycle import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
