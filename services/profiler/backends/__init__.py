"""Backends, which run kernels. Importing this package imports no runtime; `discovery.open_backend` imports the one it opens."""
