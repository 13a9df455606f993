"""Placeholder replaced below."""

OOM_UNDER_LOAD = "torch.OutOfMemoryError: CUDA out of memory."
OOM_AT_START = "torch.OutOfMemoryError: CUDA out of memory."
