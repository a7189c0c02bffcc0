# Images of this checkout:
#
#   docker build -t kernalyse-nsys .                                          the profiler, with CUDA, Nsight Systems and Nsight Compute
#   docker build -t kernalyse-opencl --build-arg PROFILER_BASE=plain .        the profiler without them: OpenCL
#   docker build -t kernalyse --target dashboard .                            analyzer and dashboard
#
# deploy/README.md says how to run them; deploy/compose.yaml does it for one machine.

ARG PYTHON_IMAGE=python:3.12-slim-bookworm
ARG CUDA_IMAGE=nvidia/cuda:12.8.1-devel-ubuntu24.04
ARG PROFILER_BASE=cuda

FROM ${PYTHON_IMAGE} AS plain

FROM plain AS wheel
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip python3 -m venv /build && /build/bin/pip wheel --no-deps --wheel-dir /dist . ./compat

FROM plain AS dashboard
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,source=deploy,target=/deploy sh /deploy/image.sh packages dashboard
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,source=deploy,target=/deploy --mount=type=bind,from=wheel,source=/dist,target=/dist \
    sh /deploy/image.sh kernalyse kernalyse.services.analyzer.server,kernalyse.services.ui.app
ENV PATH=/opt/kernalyse/bin:$PATH XDG_CONFIG_HOME=/var/lib/kernalyse/config XDG_DATA_HOME=/var/lib/kernalyse/data XDG_RUNTIME_DIR=/run/kernalyse
USER kernalyse
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "-m", "kernalyse.health"]
ENTRYPOINT ["kernalyse"]
CMD ["analyzer"]

# All of NVIDIA's that a profiler uses. PyCUDA is built here, against the image's toolkit.
FROM ${CUDA_IMAGE} AS cuda
ARG NSIGHT=12-8
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      python3 python3-dev python3-venv cuda-nsight-systems-${NSIGHT} cuda-nsight-compute-${NSIGHT} \
 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,source=requirements-cuda.lock,target=/cuda.lock \
    python3 -m venv /opt/kernalyse \
 && /opt/kernalyse/bin/pip install --no-deps --require-hashes -r /cuda.lock

FROM ${PROFILER_BASE} AS profiler
# What keeps runs from the rest of the container, where its host lets containers make namespaces.
RUN command -v bwrap \
 || { apt-get update && apt-get install --yes --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*; }
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,source=deploy,target=/deploy sh /deploy/image.sh packages profiler
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,source=deploy,target=/deploy --mount=type=bind,from=wheel,source=/dist,target=/dist \
    sh /deploy/image.sh kernalyse kernalyse.services.profiler.server,kernalyse.services.profiler.worker
ENV PATH=/opt/kernalyse/bin:$PATH XDG_CONFIG_HOME=/var/lib/kernalyse/config XDG_DATA_HOME=/var/lib/kernalyse/data XDG_RUNTIME_DIR=/run/kernalyse
USER kernalyse
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "-m", "kernalyse.health"]
ENTRYPOINT ["kernalyse"]
CMD ["profiler"]
