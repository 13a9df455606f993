"""What pyproject.toml cannot say for good yet: the part of the client that is compiled, where there is a compiler."""

from setuptools import Extension, setup

# Optional: without it the client does the same in Python, at more CPU per token.
setup(ext_modules=[Extension("loadcell.client._drain", ["src/loadcell/client/_drain.c"], optional=True)])
