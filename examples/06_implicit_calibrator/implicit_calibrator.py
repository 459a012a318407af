"""TensorRT's own calibrator in a builder of your own, then its cache without data; TensorRT 8.5 to 10.x."""

import hashlib
import sys
from pathlib import Path

import trtint8
from calibrators.tensorrt import EntropyCalibrator2
from calibrators.tensorrt.calibrator import ServedBuild
from calibrators.tensorrt.feeding import network_dtypes
from trtint8.data import DEMO_MODEL, load_digits_split

OUTPUT = Path("example_output")
BATCH = 50


def make_calibrator(images, cache, **options):
    """The calibrator: data, the model's inputs, and where TensorRT's cache is kept."""
    return EntropyCalibrator2(
        {"images": images},
        trtint8.model_inputs(DEMO_MODEL),
        batch_size=BATCH,
        cache=cache,
        model_fingerprint=hashlib.sha256(DEMO_MODEL.read_bytes()).hexdigest(),
        **options,
    )


def build(ranges) -> bytes:
    """Builds with TensorRT's API as without trtint8; ``ranges`` is a calibrator, or a cache."""
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(DEMO_MODEL.read_bytes()):
        raise SystemExit(str(parser.get_error(0)))
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.INT8)
    profile = builder.create_optimization_profile()
    profile.set_shape("images", (1, 1, 8, 8), (BATCH, 1, 8, 8), (BATCH, 1, 8, 8))
    config.add_optimization_profile(profile)
    if isinstance(ranges, Path):
        done = trtint8.set_dynamic_ranges(network, ranges, config=config)
        for missing in done.missing:
            print(f"no range for {missing.tensor}, which {missing.layer} writes")
        plan = builder.build_serialized_network(network, config)
    else:
        config.set_calibration_profile(profile)
        plan = calibrated(ranges, builder, network, config)
    if plan is None:
        raise SystemExit("TensorRT built nothing; its log says why")
    return bytes(plan)


def calibrated(calibrator, builder, network, config):
    """Builds while TensorRT calibrates; four lines feed the calibrator."""
    import tensorrt as trt

    served = ServedBuild(network_dtypes=network_dtypes(trt, network))  # TensorRT before 10: INT64 as INT32
    calibrator.bind(served)  # checks data and cache before TensorRT is busy
    config.int8_calibrator = calibrator
    plan = builder.build_serialized_network(network, config)
    calibrator.raise_failure()  # what TensorRT has discarded
    return plan


def main() -> int:
    """Calibrates and builds; without a GPU or TensorRT it says so and ends with 2."""
    OUTPUT.mkdir(exist_ok=True)
    try:
        calibrator = make_calibrator(load_digits_split().calibration_images, OUTPUT / "digits.cache")
        calibrator.prepare()
        print(f"on GPU {calibrator.device.ordinal}")  # which TensorRT needs as well
    except trtint8.TrtInt8Error as error:
        print(error, file=sys.stderr)
        return 2
    (OUTPUT / "digits.plan").write_bytes(build(calibrator))
    print(f"{calibrator.batches} batches, {len(calibrator.table.amax)} ranges in {OUTPUT / 'digits.cache'}")
    (OUTPUT / "without_data.plan").write_bytes(build(OUTPUT / "digits.cache"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
