# A small image: Debian, its Python, and MiniQ with the drivers of its databases. `make container` runs every step of this
# file without Docker, in a chroot, and uses the result.
FROM debian:trixie-slim AS build
RUN apt-get update && apt-get install --no-install-recommends -y ca-certificates python3-venv
WORKDIR /src
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY src ./src
# A virtual environment without pip, which is not needed to run it.
RUN python3 -m venv --without-pip /opt/miniq \
 && python3 -m venv /opt/pip \
 && /opt/pip/bin/pip --python /opt/miniq/bin/python install --no-cache-dir -c constraints.txt '.[mongodb,postgresql]'

FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install --no-install-recommends -y ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /usr/share/doc/*
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/miniq --shell /usr/sbin/nologin miniq \
 && install -d -o miniq -g miniq -m 700 /var/lib/miniq
COPY --from=build /opt/miniq /opt/miniq

USER miniq
WORKDIR /var/lib/miniq
VOLUME /var/lib/miniq
ENV PATH=/opt/miniq/bin:/usr/local/bin:/usr/bin:/bin \
    MINIQ_STORE=rocksdb:/var/lib/miniq/data \
    MINIQ_HOST=0.0.0.0 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
EXPOSE 5000 5555 5556 5557
# Other machines can reach a container's port, so the broker wants an API key before it listens:
#   docker run --rm -v miniq:/var/lib/miniq miniq keys create admin --allow '*' --yes --store rocksdb:/var/lib/miniq/data
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:5000/health', timeout=2).read()"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["miniq"]
CMD ["serve"]
