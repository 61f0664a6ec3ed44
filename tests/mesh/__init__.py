"""The whole mesh, real processes: started by `kvmesh up`, asked over HTTP and over the bus."""
