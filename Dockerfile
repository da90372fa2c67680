# bertworks serve on a CPU: runs as any user, on a read-only file system.
#   docker build -t bertworks --build-arg PIP_EXTRA_INDEX_URL=… .
# The argument names the index of PyTorch's CPU builds; without it gigabytes of CUDA are installed.
# With --build-arg EXTRAS=serve there is no PyTorch: for models that native code computes. That image
# has less than 250 MB.
#   docker run --read-only --user 1000:1000 -p 8080:8080 -e BERTWORKS_API_KEYS=me:KEY \
#     -v $PWD/models:/models:ro bertworks /models/minilm
FROM python:3.11-slim AS build
WORKDIR /source
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=serve,train
RUN apt-get update && apt-get install --no-install-recommends -y gcc libc6-dev  # native code
COPY pyproject.toml constraints.txt build_native.py README.md LICENSE NOTICE ./
COPY recipes recipes
COPY src src
# Without pip and the bytecode of all modules; the last line writes that of those which are loaded.
RUN python -m venv --without-pip /venv \
 && pip --python /venv/bin/python install --no-cache-dir --no-compile -c constraints.txt ".[$EXTRAS]" \
 && if [ "$EXTRAS" = serve ]; then \
      pip --python /venv/bin/python uninstall --yes hf-xet; \
      find /venv -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} +; \
      find /venv -path '*/numpy/*' -name tests -prune -exec rm -r {} +; \
    fi \
 && find /venv -name '*.pyi' -delete \
 && /venv/bin/python -c "import bertworks as bw, bertworks.serving.server; bw.load('mini-sentences').embed(['a'])"

FROM python:3.11-slim
COPY --from=build /venv /venv
# Nothing is written but temporary files and, if a model comes from the hub, its cache: in memory,
# of which Docker gives 64 MB unless --shm-size says otherwise.
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/dev/shm TMPDIR=/dev/shm \
    HF_HOME=/dev/shm/huggingface
USER 65534
EXPOSE 8080
# Of the port and the protocol that the variables of `serve` set.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", \
  "import os, ssl, urllib.request as r; v = os.environ.get; \
tls = bool(v('BERTWORKS_SERVE_TLS_KEY')); \
url = f'http{\"s\" * tls}://127.0.0.1:{v(\"BERTWORKS_SERVE_PORT\") or 8080}/health'; \
r.urlopen(url, timeout=2, context=ssl._create_unverified_context() if tls else None)"]
ENTRYPOINT ["bertworks", "serve", "--host", "0.0.0.0"]
CMD ["--help"]
