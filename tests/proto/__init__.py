"""Tests of `proto`: what two processes agree on stays what it is, whatever the other one's version."""
