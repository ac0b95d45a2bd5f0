# A small image with the tinkrs program alone: no shell, no libc, nobody but its own user.
#
#   printf '%s\n' 'tml-choose-a-long-key alice' > keys.txt && chmod 600 keys.txt && sudo chown 65532 keys.txt
#   docker build -t tinkrs .
#   docker run -p 127.0.0.1:8000:8000 -v tinkrs:/data -v ./keys.txt:/keys.txt:ro tinkrs
#
# `dist/test` assembles the same root filesystem without a container engine and runs the server in it.
FROM rust:1.95-slim-bookworm AS build
# Debian keeps no old versions that could be pinned.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ make binutils git python3 \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN dist/rootfs /rootfs dist

FROM scratch
COPY --from=build --chown=65532:65532 /rootfs/ /
USER 65532:65532
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
  CMD ["/tinkrs", "doctor", "--alive", "--base-url", "http://127.0.0.1:8000"]
ENTRYPOINT ["/tinkrs"]
CMD ["serve", "--addr", "0.0.0.0:8000", "--data-dir", "/data", "--api-key-file", "/keys.txt", "--log", "info"]
