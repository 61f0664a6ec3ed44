"""NIXL between real processes: the tests hold one pool, `peer_process` another."""
