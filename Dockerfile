# An image whose command is attnbench:
#   docker build -t attnbench .
#   docker run --rm -v "$PWD:/work" attnbench run scenario.yaml --json results.json
# With CUDA, for machines with the NVIDIA container toolkit (then: docker run --gpus all ...):
#   docker build -t attnbench-cuda --build-arg PRESET=package \
#     --build-arg BUILD_IMAGE=nvidia/cuda:12.8.1-devel-ubuntu24.04 \
#     --build-arg RUN_IMAGE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
ARG BUILD_IMAGE=ubuntu:24.04
ARG RUN_IMAGE=ubuntu:24.04

FROM ${BUILD_IMAGE} AS build
ARG PRESET=package-cpu
COPY . /source
WORKDIR /source
RUN ./scripts/setup.sh \
 && cmake --preset ${PRESET} \
 && cmake --build --preset ${PRESET} \
 && cpack --config build-${PRESET}/CPackConfig.cmake -B /packages

FROM ${RUN_IMAGE}
COPY --from=build /packages/*.deb /tmp/
RUN apt-get update \
 && apt-get install -y --no-install-recommends /tmp/*.deb \
 && rm -rf /tmp/*.deb /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["attnbench"]
CMD ["--help"]
