"""The demo: from text to predictions, with only this package and Python."""

from .cycle import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
