# cython: language_level=3, auto_pickle=False, embedsignature=True
"""Lanes of offsets, for Python code. See queue/lanes.pxd."""

__all__ = ["LANE_SHIFT", "OFFSET_MASK"]

globals().update(LANE_SHIFT=LANE_SHIFT)
# Mask for the bits of an offset below its lane.
OFFSET_MASK = (<uint64_t>1 << LANE_SHIFT) - 1
