"""`kvmesh demo-roles`: a mesh on this machine whose load swings, and a view of its roles as they follow.

Read in this order: `swing` (the load, and the workers that it is made for), `stage` (the mesh's processes),
`scene` (what is to be seen of them), `show` (how it looks), `demo` (one run), `demo_command`
(what it is told).
"""
