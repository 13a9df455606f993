"""What a user may say about a load, by name, and what it means. The command line and the Python API share it."""
