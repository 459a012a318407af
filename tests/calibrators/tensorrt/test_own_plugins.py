"""Plugins that come with TensorRT."""

from calibrators.tensorrt.own_plugins import register_own_plugins


def test_the_plugins_of_tensorrt_for_rtx(rtx):
    register_own_plugins(rtx.module)
    register_own_plugins(rtx.module)  # once more does no harm
    names = [creator.name for creator in rtx.module.get_plugin_registry().all_creators]
    assert "ROIAlign_TRT" in names and len(names) == len(set(names))
