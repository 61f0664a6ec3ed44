"""The router: pure parts against naive twins, the service against real servers."""
