"""Clients that people use, each before a whole mesh of real processes."""
