"""What TensorRT says, in plain words."""

import threading

import pytest

from calibrators.tensorrt.messages import BuildLog, collected, plain, shared_logger


# Messages.
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("false", "TensorRT does not support this operator"),
        ('creator && "Plugin not found, are the plugin name..."', "TensorRT does not support this operator"),
        ("Assertion failed: (a || b): Scale must be positive", "Scale must be positive"),
        (
            "IBuilderConfig::setMemoryPoolLimit: Error Code 3: API Usage Error (Parameter check failed, "
            "condition: poolSize <= kSIZE. kTACTIC_SHARED_MEMORY must be < 1GiB In validatePoolSize at "
            "/_src/optimizer/api/builderConfig.cpp:396)",
            "kTACTIC_SHARED_MEMORY must be < 1GiB",
        ),
        ("Parameter check failed, condition: false. DLA is disabled.", "DLA is disabled"),
        (
            "Parameter check failed, condition: size > 4 && b. ",
            "Parameter check failed, condition: size > 4 && b",
        ),
        (
            "4: [standardEngineBuilder.cpp::initCalibrationParams::1460] Error Code 4: Internal Error "
            "(Calibration failure occurred with no scaling factors detected.)",
            "Calibration failure occurred with no scaling factors detected",
        ),
        (
            'Assertion failed: checkSpatialDims(kernel_tensor_ptr->getDimensions()) && "The input tensor '
            'shape misaligns with the input kernel shape."',
            "The input tensor shape misaligns with the input kernel shape",
        ),
        (
            "3: [executionContext.cpp::setInputShape::2068] Error Code 3: API Usage Error (Parameter check "
            "failed at: runtime/api/executionContext.cpp::setInputShape::2068, condition: engineDims.d[i] == "
            "dims.d[i]. Static dimension mismatch while setting input shape.)",
            "Static dimension mismatch while setting input shape",
        ),
        (
            "3: [a.cpp::b::1] Error Code 3: API Usage Error (Parameter check failed at: a.cpp::b::1, "
            "condition: x. Supplied dimension is 8.\n)",
            "Supplied dimension is 8",
        ),
        (
            "1: [checkMacros.cpp::catchCudaError::272] Error Code 1: Cuda Runtime (an illegal memory access "
            "was encountered)",
            "an illegal memory access was encountered",
        ),
        (
            "1: [checkMacros.cpp::catchCudaError::272] Error Code 1: Cuda Runtime (no CUDA-capable device is "
            "detected)",
            "",
        ),
        ("4: The timing cache will not be used!", "The timing cache will not be used!"),
        ("onnxOpImporters.cpp:1980: Defaulting to INT8 instead.", "Defaulting to INT8 instead"),
        (
            "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([pass.cpp:337: check_op] Cannot "
            "compile 'fc' (SM75): no FP32 GEMM. In compileGraph at /_src/optimizer/codeGenerator.cpp:2012)",
            "Cannot compile 'fc' (SM75): no FP32 GEMM",
        ),
        ("[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (cudaError 35)", ""),
        (
            "Calibrator is not being used. Users must provide dynamic range for all tensors that are not "
            "Int32 or Bool.",
            "",
        ),
        (
            "IBuilder::buildSerializedNetwork: Error Code 9: Internal Error (Myelin (\nno memory for a))",
            "Myelin (no memory for a)",
        ),
    ],
)
def test_plain_words(text, words):
    assert plain(text) == words


def test_reason_is_never_empty():
    assert BuildLog().reason() == "TensorRT gave no reason"
    assert BuildLog(errors=["a", "b", "c", "c"]).reason() == "b; c"


# Whose messages they are.


@pytest.fixture
def say(rtx):
    """Logs an error, a warning and a detail with a name, as TensorRT does."""
    severity = rtx.module.ILogger.Severity

    def log(name):
        for level in (severity.ERROR, severity.WARNING, severity.VERBOSE):
            shared_logger(rtx.module).log(level, name)

    return log


def all_of(log):
    return log.errors, log.warnings, log.details


def in_a_thread(work, *arguments):
    """Runs something in a thread that collects nothing, as those of TensorRT's own."""
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_a_block_inside_another_takes_its_own_messages(rtx, say):
    with collected(rtx.module) as outer:
        say("a")
        with collected(rtx.module) as inner:
            say("b")
        say("c")
    say("d")
    assert all_of(inner) == (["b"],) * 3
    assert all_of(outer) == (["a", "c"],) * 3


def test_blocks_of_several_threads_do_not_wait_for_one_another(rtx, say):
    logs = {}

    def load():
        with collected(rtx.module) as logs["load"]:
            say("load")

    with collected(rtx.module) as build:
        say("build")
        in_a_thread(load)
    assert all_of(logs["load"]) == (["load"],) * 3
    assert all_of(build) == (["build"],) * 3


def test_threads_of_tensorrts_own_speak_for_the_block_that_is_open(rtx, say):
    with collected(rtx.module) as build:
        in_a_thread(say, "kernel")
    assert all_of(build) == (["kernel"],) * 3


def test_or_for_all_of_them_except_that_a_list_of_layers_is_of_one_engine(rtx, say):
    opened, checked = threading.Event(), threading.Event()
    logs = {}

    def other():
        with collected(rtx.module) as logs["other"]:
            opened.set()
            checked.wait(30)

    thread = threading.Thread(target=other)
    with collected(rtx.module) as build:
        thread.start()
        opened.wait(30)
        in_a_thread(say, "kernel")
        checked.set()
        thread.join(30)
    assert all_of(build) == all_of(logs["other"]) == (["kernel"], ["kernel"], [])


def test_the_last_error_is_that_of_the_thread(rtx, say):
    say("mine")
    in_a_thread(say, "theirs")
    assert shared_logger(rtx.module).last_error == "mine"
