"""Load LLM inference services, and measure what they deliver without disturbing them."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["BenchResult", "bench"]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """`loadcell.bench` and its result, loaded when first used: `loadcell --help` needs neither."""
    if name in __all__:
        from loadcell import api

        return getattr(api, name)
    raise AttributeError(f"module 'loadcell' has no attribute {name!r}")
