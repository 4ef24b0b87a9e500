# The program alone in an image, built from this folder:
#
#   docker build --tag vitpcm .          # or podman build, buildah build
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/data" vitpcm masks my-images --out masks
#   docker run --rm --publish 7878:7878 vitpcm serve --host 0.0.0.0
#
# Any image with Rust of at least `rust-version` in Cargo.toml and a C library to link statically will do as the first stage.
ARG BUILD_IMAGE=docker.io/library/rust:1-bookworm

FROM ${BUILD_IMAGE} AS build
WORKDIR /vitpcm
COPY . .
# The last step that may need the network: exactly what Cargo.lock names, or nothing if a folder of `cargo vendor` came along.
RUN cargo fetch --locked
# Statically linked, so that the second stage needs no C library. --target keeps that from the compiler's plugins, which cannot be static.
RUN target=$(rustc -vV | sed -n 's/^host: //p') && \
    RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --offline --package vitpcm-cli --bin vitpcm --target "$target" && \
    install -D "target/$target/release/vitpcm" /image/usr/bin/vitpcm && \
    install -D -m 644 -t /image/usr/share/doc/vitpcm LICENSE-* crates/vitpcm/model/NOTICE && \
    mkdir -p /image/data && chown 1000:1000 /image/data

FROM scratch
COPY --from=build /image /
WORKDIR /data
USER 1000:1000
ENTRYPOINT ["/usr/bin/vitpcm"]
