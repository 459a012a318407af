"""A vision transformer: channels get similar ranges, and what is outside INT8 is in FP16."""

from pathlib import Path

import onnx

import trtint8

HERE, OUTPUT = Path(__file__).parent, Path("example_output")


def main() -> None:
    """Compares INT8 as calibrated with INT8 after equalization, and builds the second."""
    OUTPUT.mkdir(exist_ok=True)
    raw = trtint8.Preprocessing()  # uint8 images, divided by 255
    model, calibration, heldout = (
        HERE / name for name in ("transformer.onnx", "calibration.npz", "heldout.npz")
    )
    table = trtint8.calibrate(model, calibration, preprocessing=raw)
    plain = trtint8.quantize(model, table)
    equalized = trtint8.quantize(model, table, equalize=calibration, preprocessing=raw)
    half = trtint8.quantize(
        model, table, equalize=calibration, preprocessing=raw, float16=True, float32_io=True
    )

    accuracy = trtint8.validate(
        plain,
        heldout,
        reference=model,
        also={"equalized": equalized, "equalized, rest in FP16": half},
        preprocessing=raw,
    )
    for name, judged in {"INT8": accuracy, **accuracy.also}.items():
        sqnr = f"{judged.outputs[0].sqnr_db:.1f} dB"
        print(f"{name}: top-1 {judged.top1.value:.2%} (FP32 {judged.reference_top1.value:.2%}), SQNR {sqnr}")

    onnx.save(half, OUTPUT / "transformer.int8.onnx")
    result = trtint8.build_int8_engine(OUTPUT / "transformer.int8.onnx", None, OUTPUT / "transformer.engine")
    print("weighted layers in INT8: {} of {}".format(*result.info.int8_layers))


if __name__ == "__main__":
    main()
