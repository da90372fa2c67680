"""The precisions for which this processor has native kernels."""

from __future__ import annotations

import pytest

from bertworks.native.library import has_kernels

PRECISIONS = tuple(one for one in ("fp32", "bf16", "int8") if has_kernels(one))
SHORTEST_FLOAT = "bf16" if "bf16" in PRECISIONS else "fp32"
needs_kernels = pytest.mark.skipif(not PRECISIONS, reason="no compiler built native code")
