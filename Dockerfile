# An image with the program of scripts/package.sh. Its entry point is gradtile:
#   docker build -t gradtile .
#   docker run --rm -v "$PWD:/work" gradtile train --preset demo --data stories.txt --out run
# With kernels for NVIDIA GPUs, for docker run --gpus all:
#   docker build -t gradtile:cuda --build-arg BUILD_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04 \
#     --build-arg RUN_IMAGE=nvidia/cuda:13.0.1-runtime-ubuntu24.04 .
# The run image may not have an older glibc than the build image.
ARG BUILD_IMAGE=debian:bookworm
ARG RUN_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /gradtile
COPY . .
RUN scripts/package.sh
RUN mkdir /opt/gradtile && tar -xzf build/gradtile-*-linux-x86_64.tar.gz -C /opt/gradtile --strip-components=1

FROM ${RUN_IMAGE}
COPY --from=build /opt/gradtile /opt/gradtile
RUN ln -s /opt/gradtile/bin/gradtile /usr/local/bin/gradtile
WORKDIR /work
ENTRYPOINT ["gradtile"]
