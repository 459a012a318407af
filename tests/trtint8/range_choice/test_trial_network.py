"""The network that ranges are tried on computes what the quantized model computes."""

import gc
import threading

import numpy as np
import onnxruntime as ort
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from tests.trtint8.detectors import detector, images
from tests.trtint8.range_choice import networks


def run(model, feed):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def distance(got, wanted):
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("build", [networks.convolutions, networks.branches, networks.two_inputs_and_outputs])
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_it_computes_what_the_quantized_model_computes(build, factor):
    model = build()
    feed = {value.name: networks.normal(3, seed=seed) for seed, value in enumerate(model.graph.input)}
    table = trtint8.calibrate(model, feed, method="minmax", tensors="placed", progress=False)
    table = table.override({name: factor * value for name, value in table.amax.items()})
    with networks.trial_network(model) as (_, _, network):
        wanted = run(trtint8.quantize(model, table), feed)
        got = network.outputs(feed, network.scales(table.amax))
        exact = network.reference(feed)
        assert len(got) == len(exact) == len(wanted) == len(model.graph.output)
        for tried, quantized, unquantized, outside in zip(got, wanted, exact, run(model, feed), strict=True):
            np.testing.assert_allclose(unquantized, outside, rtol=1e-4, atol=1e-5)
            assert distance(tried, quantized) < 1e-3 < distance(quantized, unquantized)


def test_tensors_that_share_a_scale_get_the_widest_range():
    with networks.trial_network(networks.branches()) as (_, placement, network):
        amax = {name: float(number + 1) for number, name in enumerate(placement.tensors)}
        (group,) = placement.shared
        widest = max(amax[name] for name in group)
        wanted = {
            name: np.float32((widest if name in group else value) / 127) for name, value in amax.items()
        }
        assert network.scales(amax) == wanted


def test_a_tensor_that_was_zero_has_a_scale_and_no_warning(recwarn):
    with networks.trial_network(networks.convolutions()) as (_, placement, network):
        assert set(network.scales(dict.fromkeys(placement.tensors, 0.0)).values()) == {np.float32(1 / 127)}
        assert not recwarn.list


def test_no_thread_works_on_after_its_end():
    before = set(threading.enumerate())
    with networks.trial_network(networks.branches()):
        pass
    assert set(threading.enumerate()) <= before
    assert gc.isenabled()


def test_a_float_network_that_is_open_already_is_used():
    with networks.trial_network(networks.convolutions()) as (_, _, network):
        network.open_float(lambda feed: [2 * feed["x"]])
        (found,) = network.reference({"x": networks.normal(1)})
        np.testing.assert_array_equal(found, 2 * networks.normal(1))


def test_a_sample_that_the_model_refuses():
    with (
        networks.trial_network(networks.convolutions()) as (_, _, network),
        pytest.raises(CalibrationDataError, match="the model fails on a sample: "),
    ):
        network.reference({"x": networks.normal(1, 5, 8, 8)})


def test_the_parts_of_an_output_are_told_apart():
    with networks.trial_network(detector()) as (_, placement, network):
        feed = {"images": images(3)}
        (whole,) = run(detector(), feed)
        boxes, scores = network.reference(feed)
        np.testing.assert_allclose(boxes, whole[:, :4], rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(scores, whole[:, 4:], rtol=1e-4, atol=1e-5)
        quantized = network.outputs(feed, network.scales(dict.fromkeys(placement.tensors, 4.0)))
        assert [array.shape for array in quantized] == [boxes.shape, scores.shape]
