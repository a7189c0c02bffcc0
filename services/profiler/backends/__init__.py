"""Ways to run kernels. Importing this package imports no runtime; `open_backend` imports the one it opens."""

from services.profiler.backends.registry import available_devices, open_backend, open_backend_for

__all__ = ["available_devices", "open_backend", "open_backend_for"]
