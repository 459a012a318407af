"""From the calibration cache of TensorRT 8 to an engine of a TensorRT that has no calibrators."""

from pathlib import Path

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split

HERE, OUTPUT = Path(__file__).parent, Path("example_output")


def main() -> None:
    """Shows what the cache lacks, makes the Q/DQ model, proves that it runs in INT8, and builds it."""
    OUTPUT.mkdir(exist_ok=True)
    cache = HERE / "digits.cache"
    try:
        trtint8.migrate(DEMO_MODEL, cache)
    except trtint8.TableError as error:
        print("without fill:", error)
    migrated = trtint8.migrate(DEMO_MODEL, cache, fill=True)
    model = migrated.save(OUTPUT / "migrated.onnx")

    inputs = trtint8.model_inputs(DEMO_MODEL)
    layers = migrated.placement.quantized_nodes
    counted = trtint8.count_int8_layers(migrated.graph_model, inputs, layers)
    print(f"TensorRT for RTX runs {counted} of {len(layers)} layers in INT8")

    digits = load_digits_split()
    accuracy = trtint8.validate(
        model, digits.heldout_images, reference=DEMO_MODEL, labels=digits.heldout_labels
    )
    print(f"top-1: FP32 {accuracy.reference_top1.value:.2%}, INT8 {accuracy.top1.value:.2%}")
    trtint8.build_int8_engine(model, None, OUTPUT / "digits.engine")


if __name__ == "__main__":
    main()
