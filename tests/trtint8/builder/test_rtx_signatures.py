"""Every member of TensorRT that the code uses is in TensorRT for RTX, where its route goes."""

from tests.signatures import Use, accepted_arguments, collect, problem, problems


def test_the_code_is_really_looked_at():
    members = {(use.owner, use.member) for use in collect()}
    assert {
        ("Builder", "build_serialized_network"),
        ("IBuilderConfig", "set_calibration_profile"),
        ("IExecutionContext", "execute_async_v3"),
        ("ITensor", "set_dynamic_range"),
        ("ILayer", "precision"),
        ("", "OnnxParser"),
        ("BuilderFlag", "TF32"),
    } <= members
    assert len(members) > 80


def test_every_use_is_as_the_bindings_have_it(rtx):
    assert problems(rtx.module, rtx, collect()) == []


def test_what_is_not_there_is_found(rtx):
    assert "there is no Builder.nonsense" in problem(rtx.module, rtx, Use("Builder", "nonsense", 1, "x"))
    wrong = Use("IOptimizationProfile", "set_shape", 2, "x")
    assert (
        problem(rtx.module, rtx, wrong) == "x: IOptimizationProfile.set_shape takes [(4, 4)] arguments, not 2"
    )
    assert accepted_arguments(rtx.module.Builder.create_network) == [(0, 1)]
