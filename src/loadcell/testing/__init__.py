"""Fakes for tests, ours and a plug-in's. Nothing in the rest of loadcell imports this package."""
