"""`kvmesh status`: who works in a mesh, what they carry, and whose blocks are whose.

Reading order: `status_settings` (which mesh), `rows` (one worker as one line), `view` (where lines come
from), `tables` (how they look), `show` (the command).
"""
