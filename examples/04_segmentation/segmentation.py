"""A segmentation network, judged by the class of every pixel."""

from pathlib import Path

import trtint8

HERE, OUTPUT = Path(__file__).parent, Path("example_output")


def main() -> None:
    """Quantizes the network, says what INT8 costs, and builds the engine."""
    OUTPUT.mkdir(exist_ok=True)
    raw = trtint8.Preprocessing()  # uint8 images, divided by 255
    # INT8 gains nothing in a network as small as this one. Without keep_int8 its layers would stay in FP16.
    result = trtint8.build_int8_engine(
        HERE / "segmentation.onnx",
        HERE / "calibration.npz",
        OUTPUT / "segmentation.engine",
        keep_int8=["*"],
        preprocessing=raw,
    )
    accuracy = trtint8.validate(
        result.engine,
        HERE / "heldout.npz",
        reference=HERE / "segmentation.onnx",
        metrics=["pixels", "miou", "sqnr"],
        preprocessing=raw,
    )
    for measure in accuracy.measures:
        print(f"{measure.name}: FP32 {measure.reference:.4f}, INT8 {measure.value:.4f}")
    print(f"SQNR of '{accuracy.outputs[0].name}': {accuracy.outputs[0].sqnr_db:.1f} dB")


if __name__ == "__main__":
    main()
