"""`trtint8 doctor`."""

from __future__ import annotations

import argparse

from trtint8.api.doctor import doctor
from trtint8.cli.output import print_facts, print_json
from trtint8.cli.verbs import add_arguments

EXAMPLE = "example:\n  trtint8 doctor"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(parser, doctor, json="the findings")


def run(options: argparse.Namespace) -> None:
    """Examines this machine and prints the findings."""
    findings = doctor()
    if options.json:
        print_json(findings.to_json(), warnings=False)
    else:
        print_facts("trtint8 doctor", findings)
