"""Whatever dies: the mesh around it goes on, no client is told, and all is back where it began.

Reading order: `crowd` (clients that look closely), `mortal_mesh` (what may be killed), `astray_clock` (what
no deadline may read), `conftest`, `turncoat` (who changes roles meanwhile), the tests.
"""
