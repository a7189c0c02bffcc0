"""Ways to run kernels. Importing this package imports no runtime; `registry.open_backend` imports the one it opens."""
