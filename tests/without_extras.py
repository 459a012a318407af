"""A plugin of pytest, for ``-p tests.without_extras``: no optional extra can be imported."""

import sys

EXTRAS = (
    *(
        "PIL",
        "argcomplete",
        "faster_coco_eval",
        "html5lib",
        "jinja2",
        "matplotlib",
        "pandas",
        "polygraphy",
        "pyarrow",
    ),
    *("mkdocs", "ray", "sklearn", "tensorrt_rtx", "yaml"),
)


class _Absent:
    """Finds none of these packages."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


sys.meta_path.insert(0, _Absent())
