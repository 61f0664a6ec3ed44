"""Tests of `kvmesh up`, a file for each of its files, with small real processes for children."""
