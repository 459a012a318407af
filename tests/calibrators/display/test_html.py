"""Tables for notebooks."""

from calibrators.display.html import MOST_ROWS, Markup, bar, html_table


def test_text_is_escaped_and_markup_is_not():
    found = html_table("<b>", ("a", "b & c"), [("<i>", Markup("<svg/>"))], ["1 < 2"])
    assert found == (
        "<div><div><b>&lt;b&gt;</b></div><table><thead><tr>"
        '<th style="text-align:left;padding:0 0.5em">a</th>'
        '<th style="text-align:right;padding:0 0.5em">b &amp; c</th></tr></thead><tbody><tr>'
        '<td style="text-align:left;padding:0 0.5em">&lt;i&gt;</td>'
        '<td style="text-align:right;padding:0 0.5em"><svg/></td></tr></tbody></table>'
        "<div>1 &lt; 2</div></div>"
    )


def test_long_tables_say_what_they_leave_out():
    found = html_table("t", ("", ""), [(str(row), "x") for row in range(MOST_ROWS + 3)])
    assert found.count("<tr>") == MOST_ROWS and "<thead>" not in found
    assert "<div>… and 3 more</div>" in found


def test_a_bar_is_as_long_as_its_share():
    assert '<rect width="33.3" height="10"' in bar(1 / 3).html
