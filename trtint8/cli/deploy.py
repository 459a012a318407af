"""`trtint8 deploy`."""

from __future__ import annotations

import argparse
from typing import get_args

from trtint8.cli.data_options import add_image_options, preprocessing_from
from trtint8.cli.once import Once
from trtint8.cli.output import print_json, print_table, say
from trtint8.deployment.writing import Destination, deploy

EXAMPLE = (
    "example:\n  trtint8 deploy resnet50.engine --to triton -o models/ --resize 256 --crop 224,224 \\\n"
    "      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("engine", metavar="ENGINE", help="an engine, with the files beside it")
    parser.add_argument(
        "--to", action=Once, required=True, choices=get_args(Destination), help="what runs it"
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--json", action="store_true", help="print the names of the files as JSON")
    add_image_options(parser, "how raw images become what the engine is fed, which goes along")


def run(options: argparse.Namespace) -> None:
    """Writes the folder and says what is in it."""
    files = deploy(options.engine, options.to, options.output, preprocessing_from(options))
    if options.json:
        print_json({"to": options.to, "files": list(map(str, files))})
        return
    rows = [(str(path), f"{path.stat().st_size:,}") for path in files]
    print_table(f"Deployed to {options.to}", ("file", "bytes"), rows)
    say("README.md says how to run it, and what was not tried without a GPU")
