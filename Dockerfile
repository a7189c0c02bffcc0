# Two images of this checkout:
#
#   docker build -t kernalyse-nsys .                    the profiler, with CUDA, Nsight Systems and Nsight Compute
#   docker build -t kernalyse --target dashboard .      analyzer and dashboard, without any of them
#
# deploy/README.md says how to run them; deploy/compose.yaml does it for one machine.

ARG PYTHON_IMAGE=python:3.12-slim-bookworm
ARG CUDA_IMAGE=nvidia/cuda:12.8.1-devel-ubuntu24.04

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist . ./compat

FROM ${PYTHON_IMAGE} AS dashboard
COPY deploy/dashboard.lock /tmp/dashboard.lock
RUN python3 -m venv /opt/kernalyse \
 && /opt/kernalyse/bin/pip install --no-cache-dir --no-deps --require-hashes -r /tmp/dashboard.lock
COPY --from=wheel /dist /dist
RUN /opt/kernalyse/bin/pip install --no-cache-dir --no-deps /dist/*.whl
RUN groupadd --gid 10001 kernalyse \
 && useradd --uid 10001 --gid kernalyse --home-dir /var/lib/kernalyse --create-home kernalyse \
 && install -d -o kernalyse -g kernalyse /run/kernalyse
ENV PATH=/opt/kernalyse/bin:$PATH XDG_CONFIG_HOME=/var/lib/kernalyse/config XDG_DATA_HOME=/var/lib/kernalyse/data XDG_RUNTIME_DIR=/run/kernalyse
USER kernalyse
ENTRYPOINT ["kernalyse"]
CMD ["analyzer"]

FROM ${CUDA_IMAGE} AS profiler
ARG NSIGHT=12-8
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      python3 python3-dev python3-venv cuda-nsight-systems-${NSIGHT} cuda-nsight-compute-${NSIGHT} \
 && rm -rf /var/lib/apt/lists/*
COPY deploy/profiler.lock /tmp/profiler.lock
# PyCUDA is built here, against the image's toolkit.
RUN python3 -m venv /opt/kernalyse \
 && /opt/kernalyse/bin/pip install --no-cache-dir --no-deps --require-hashes -r /tmp/profiler.lock
COPY --from=wheel /dist /dist
RUN /opt/kernalyse/bin/pip install --no-cache-dir --no-deps /dist/*.whl
RUN groupadd --gid 10001 kernalyse \
 && useradd --uid 10001 --gid kernalyse --home-dir /var/lib/kernalyse --create-home kernalyse \
 && install -d -o kernalyse -g kernalyse /run/kernalyse
ENV PATH=/opt/kernalyse/bin:$PATH XDG_CONFIG_HOME=/var/lib/kernalyse/config XDG_DATA_HOME=/var/lib/kernalyse/data XDG_RUNTIME_DIR=/run/kernalyse
USER kernalyse
ENTRYPOINT ["kernalyse"]
CMD ["profiler"]
