"""Tests of KServe's v2 protocol, with Triton's own client."""
