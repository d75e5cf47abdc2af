# The wheel is built in one stage and installed in the other, which holds neither source nor build tools.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
RUN groupadd --gid 10001 miniq \
 && useradd --uid 10001 --gid miniq --no-create-home --home-dir /var/lib/miniq --shell /usr/sbin/nologin miniq \
 && install -d -o miniq -g miniq -m 700 /var/lib/miniq
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/miniq-*.whl)[leveldb,parquet]" && rm -r /wheels

USER miniq
WORKDIR /var/lib/miniq
VOLUME /var/lib/miniq
ENV MINIQ_STORE=rocksdb:/var/lib/miniq/data \
    MINIQ_HOST=0.0.0.0 \
    PYTHONUNBUFFERED=1
EXPOSE 5000 5555 5556 5557
# Others can reach a container's port, so the broker wants an API key before it listens:
#   docker run --rm -v miniq:/var/lib/miniq miniq keys create admin --allow '*' --yes --store rocksdb:/var/lib/miniq/data
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:5000/health', timeout=2).read()"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["miniq"]
CMD ["serve"]
