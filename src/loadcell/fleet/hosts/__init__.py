"""Machines that services run on."""
