"""`kvmesh route`: where a prompt would go, and why, asked of a router of a running mesh.

Reading order: `route_settings`, `ask` (what is asked, of whom), `show` (how it looks).
"""
