"""Load LLM inference services, and measure what they deliver without disturbing them."""

__version__ = "0.1.0"
