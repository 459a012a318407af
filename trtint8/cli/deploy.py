"""`trtint8 deploy`."""

from __future__ import annotations

import argparse

from trtint8.cli.output import print_json, print_table, say
from trtint8.cli.verbs import Once, Way, add_arguments, values_of
from trtint8.deployment.writing import deploy

EXAMPLE = (
    "example:\n  trtint8 deploy resnet50.engine --to triton -o models/ --resize 256 --crop 224,224 \\\n"
    "      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser,
        deploy,
        json="the names of the files",
        engine=Way(help="the engine file, with its sidecar and the files beside it; or a model (.onnx)"),
        to=Way(("--to",), action=Once),
        target=Way(metavar="NAME", choices=()),
        preferred_batch_sizes=Way(("--preferred-batch-size",)),
        output=Way(metavar="DIR", help="a new folder"),
    )


def run(options: argparse.Namespace) -> None:
    """Writes the folder and says what is in it."""
    files = deploy(**values_of(deploy, options))
    if options.json:
        print_json({"to": options.to, "files": list(map(str, files))})
        return
    rows = [(str(path), f"{path.stat().st_size:,}") for path in files]
    print_table(f"Deployed to {options.to}", ("file", "bytes"), rows)
    say("README.md says how to run it, and what was not tried without a GPU")
