"""Tests of `kvmesh status` against a real NATS and etcd, with workers that are scripted card by card."""
