"""lins.inspect: who holds what, as text, HTML and SVG."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import lins
import models
import pytest
import torch
from lins.testing import run

MESH = lins.Mesh((2, 2), ("node", "gpu"))


def draw(notation, shape, mesh=MESH):
    return lins.inspect(lins.Layout(notation, shape=shape, mesh=mesh))


def squeezed(view):
    return " ".join(str(view).split())


def test_the_picture_in_the_docs_is_the_real_one():
    docs = (Path(__file__).parents[2] / "docs" / "dtensor.md").read_text()
    view = draw("S0(node) S1(gpu)", (5, 3))
    assert "\n".join(line.rstrip() for line in str(view).splitlines()) in docs


def test_two_dimensional_and_uneven_shards_show(capsys):
    view = draw("S0(node) S1(gpu)", (5, 3))
    text = squeezed(view)
    for part in ("rows \\ columns", "│ [0, 3) │ 0 │ 1 │", "│ [3, 5) │ 2 │ 3 │", "[0, 2)", "[2, 3)"):
        assert part in text, text
    assert "3 [3, 5) x [2, 3) (2, 1) 2" in text
    assert "S0(node) S1(gpu) of (5, 3)" in capsys.readouterr().out


def test_empty_shards_replicas_and_partials_show():
    text = squeezed(draw("S0(gpu,node)", (2,)))
    assert "1, 3 nothing" not in text and "nothing (0,) 0" in text
    assert "0-3" in squeezed(draw("R", (4, 4)))
    assert "0, 2" in squeezed(draw("S0(gpu)", (4, 4)))
    assert "pending: +sum(node)" in squeezed(draw("S0(gpu) +sum(node)", (4, 4)))
    assert "the scalar" in squeezed(draw("R", ()))
    assert "nobody" not in squeezed(draw("S0(gpu)", (0, 3)))


def test_flat_and_owned_layouts_show_elements():
    text = squeezed(draw("F(gpu; 3/24)", (4, 4)))
    assert "│ elements │ [0, 9) │ [9, 16) │" in text and "0, 2 elements [0, 9) (9,) 9" in text
    owned = squeezed(draw("O(node,gpu; 2)", (4, 4)))
    assert "2 elements [0, 16) (4, 4) 16" in owned and "0-1, 3 nothing (0,) 0" in owned


def test_three_dimensions_draw_the_split_ones():
    text = squeezed(draw("S0(node) S2(gpu)", (4, 3, 6)))
    assert "dim 0 \\ dim 2" in text and "3 [2, 4) x [0, 3) x [3, 6) (2, 3, 3) 18" in text


@pytest.mark.parametrize("notation", ["S0(node) S1(gpu)", "F(gpu)", "O(gpu; 1)", "R", "+sum(gpu)"])
def test_svg_and_html_are_well_formed(notation):
    view = draw(notation, (5, 3))
    svg = ElementTree.fromstring(view.svg)
    assert len(svg.findall("{*}rect")) == {"S": 4, "F": 2}.get(notation[0], 1)
    ElementTree.fromstring(view._repr_html_())
    assert view.svg in view._repr_html_()


def test_dtensors_show_their_rank_and_nothing_is_communicated():
    def f(m):
        with lins.no_communication():
            return lins.inspect(lins.zeros((5, 3), mesh=m, placements="S0(gpu)")).title

    titles = run((1, 2), ("node", "gpu"), f)
    assert titles[1] == "S0(gpu) of (5, 3) on Mesh(node=1, gpu=2), torch.float32, rank 1"


def test_other_objects_are_refused_with_what_is_legal():
    for wrong in (torch.ones(3), 3, "S0(gpu)"):
        with pytest.raises(
            lins.LinsError, match=r"takes a lins.Layout, a lins.DTensor, a lins.Plan or"
        ):
            lins.inspect(wrong)


def test_layouts_can_be_drawn_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "import lins; m = lins.Mesh((2, 2), ('node', 'gpu'))\n"
        "lins.inspect(lins.Layout('S0(gpu)', shape=(5, 3), mesh=m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "S0(gpu) of (5, 3)" in done.stdout


def test_models_show_layouts_moves_and_bytes_of_each_unit():
    def f(mesh):
        model = lins.lins_shard(models.Stack(), mesh, "P=2 G=2 OS=4")
        with lins.no_communication():
            return str(lins.inspect(model)), lins.inspect(model)._repr_html_()

    text, page = run((2, 2), ("node", "gpu"), f)[0]
    lines = text.splitlines()
    assert "Stack on Mesh(node=2, gpu=2), rank 0" in lines[0]
    block = next(line for line in lines if line.strip().startswith("blocks.0"))
    for part in ("56", "S0(gpu)", "S0(gpu,node)", "gather:"):
        assert part in block, block
    assert "<td>gather: all_gather(gpu); accumulate: reduce_scatter(gpu); " in page
    assert "update: all_gather(node)" in page
    assert "bytes held by this rank: param 288" in text
    assert page.count("<tr>") == 4


def test_plans_show_their_explanation(capsys):
    spec = lins.ModelSpec(units=[lins.Unit("a", 1000)])
    plan = lins.Plan.uniform(
        spec,
        lins.Cluster(
            nodes=2, gpus_per_node=2, profile=lins.Profile.model(gpus_per_node=2, nodes=2)
        ),
        policy="ddp",
    )
    assert str(lins.inspect(plan)) == str(plan.explain())
    assert str(plan.explain()) in capsys.readouterr().out
