# syntax=docker/dockerfile:1
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /src
RUN python -m venv /opt/fairslice
# What changes rarely comes first: dependencies, exactly those of the lock file.
COPY requirements.lock ./
RUN /opt/fairslice/bin/pip install --no-cache-dir --disable-pip-version-check \
      --require-hashes --only-binary :all: --requirement requirements.lock
COPY pyproject.toml README.md ./
COPY core core
COPY certs certs
COPY queue queue
COPY webhook webhook
COPY sandbox sandbox
COPY examples examples
RUN /opt/fairslice/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps . \
 && /opt/fairslice/bin/pip uninstall --yes pip \
 && /opt/fairslice/bin/python -m compileall -q /opt/fairslice/lib

FROM python:${PYTHON}-slim
COPY --from=build /opt/fairslice /opt/fairslice
# HOME: the Kubernetes client asks for it on import, and this user has no other.
ENV PATH=/opt/fairslice/bin:$PATH HOME=/ PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that the kubelet can tell that it isn't root.
USER 65532:65532
WORKDIR /
EXPOSE 9443 8081 8080
ENTRYPOINT ["fairslice"]
CMD ["--help"]
