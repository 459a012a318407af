# trtint8 with TensorRT on an NVIDIA GPU:
#
#     docker build -t trtint8 .
#     docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD:/work" trtint8 build model.onnx calibration.npz -o model.engine
#
# The driver comes from the host, by the NVIDIA Container Toolkit. This file was not built by the tests.
FROM python:3.12-slim

COPY . /source
RUN pip install --no-cache-dir "/source[tensorrt,images,report]" && rm -rf /source

# What the container toolkit mounts: computing, and nvidia-smi.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# Not root. With --user, outputs in /work belong to whoever ran it; any user may write into this home.
RUN useradd --create-home app
ENV HOME=/tmp
USER app

WORKDIR /work
ENTRYPOINT ["trtint8"]
CMD ["doctor"]
