"""What pyproject.toml cannot say for good yet: what runs per token is compiled, where there is a compiler."""

from setuptools import Extension, setup

# Optional: without them the same is done in Python, at more CPU per token.
COMPILED = ("client/_drain", "wire/_alike")
setup(ext_modules=[Extension(f"loadcell.{path.replace('/', '.')}", [f"src/loadcell/{path}.c"], optional=True) for path in COMPILED])
