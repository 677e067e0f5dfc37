"""The landing page shows the figure that the chapter drew, not an old copy of it."""

import nbformat
import pytest
import torch
from landing_figure import ROOT, TARGET, current, figure_of


def test_the_landing_figure_is_the_chapters():
    assert TARGET.read_text() == current(), (
        "book/_static/identity-fields.svg is stale: "
        "run python book/tools/landing_figure.py"
    )


def test_the_landing_page_shows_it():
    page = (ROOT / "book" / "intro.md").read_text()
    assert f"_static/{TARGET.name}" in page


def test_a_figure_that_was_not_drawn_is_an_error(tmp_path):
    cell = nbformat.v4.new_code_cell(
        "plot()", metadata={"mystnb": {"figure": {"name": "fig-x"}}}
    )
    path = tmp_path / "x.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    with pytest.raises(KeyError, match="no executed figure 'fig-x'"):
        figure_of(path, "fig-x")


def test_the_landing_code_runs_and_moves_the_model():
    text = (ROOT / "book" / "intro.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    world = {
        "model": model,
        "tickets": torch.randn(8, 5),
        "observe": lambda actions: (actions == 1).float(),
    }
    for objective in ("rlcd", "verdict_nll"):
        model.zero_grad()
        exec(code.replace('"rlcd"', f'"{objective}"'), world)
        assert model.weight.grad.abs().sum() > 0
