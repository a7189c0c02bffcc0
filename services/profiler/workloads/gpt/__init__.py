"""GPT on the project's own kernels."""
