"""The cards of a report, one per tensor of a calibration table."""

from __future__ import annotations

from calibrators.display.cards import Card, card_of
from calibrators.tables.table import CalibrationTable


def make_cards(table: CalibrationTable) -> tuple[Card, ...]:
    """Makes one card per tensor with a histogram, in ascending order of the SQNR by the range in use.

    Args:
        table: A calibration table; tensors without a histogram, such as those of imported ranges, are left
            out.
    """
    cards = [
        card_of(index, name, table.histograms[name], amax, table.method_of(name))
        for index, (name, amax) in enumerate(table.amax.items())
        if name in table.histograms and table.histograms[name].total
    ]
    return tuple(sorted(cards, key=lambda card: (card.used.sqnr_db, card.index)))
