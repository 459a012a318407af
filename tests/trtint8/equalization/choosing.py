"""Begins the choice of factors for a network."""

from tests.trtint8.equalization.transformers import followed
from trtint8.equalization.factors import FactorChoice
from trtint8.equalization.forms import find_forms
from trtint8.quantization.placement import place


def begin(model, feed, method="minmax"):
    """The choice, and the forms by their description."""
    channels = followed(model, feed)
    forms = find_forms(channels)
    choice = FactorChoice(model, place(model), channels, forms, [feed], method)
    return choice, {form.description: form for form in forms}
