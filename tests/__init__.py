"""Tests, folder for folder as the code: `tests/mesh` runs whole meshes, `tests/perf` measures."""
