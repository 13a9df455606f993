"""The services under test: start, watch and stop them, on this host's devices or across hosts."""
