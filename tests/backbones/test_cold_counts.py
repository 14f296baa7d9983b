"""Exact counts of a nano model of every family over six batches: first passes (cold) and passes right after (warm).

After a change of what a pass costs, ``python tests/backbones/test_cold_counts.py`` prints `COUNTS` anew. A warm count
that rises wants a reason.
"""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

if __name__ == "__main__":  # run by hand, not by pytest
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "tools")]

from counting import FORWARD, TRAIN, count_draw
from vitdense.backbones import MViT, Swin, SwinV2, ViT

STAGES = {"embed_dims": 16, "depths": (2, 2), "num_heads": (1, 2)}
LAYERS = {"embed_dims": 32, "depth": 2, "num_heads": 2}
MODELS = {
    "swin": partial(Swin, STAGES, out_indices=(0, 1)),
    "swin_v2": partial(SwinV2, STAGES, window_size=4, out_indices=(0, 1)),
    "mvit": partial(MViT, {**STAGES, "num_heads": 1}, out_indices=(0, 1)),
    "vitdet": partial(
        ViT, LAYERS, window_size=(2, 3), global_indices=(1,), relative_position=True, img_size=96, out_indices=(1,)
    ),
    "deit": partial(ViT, LAYERS, out_indices=(1,)),
}
# A new size; sides of which one is new; the first again; both sides seen, but not together; all new.
SHAPES = [(2, 64, 96), (2, 96, 96), (2, 96, 128), (2, 64, 96), (2, 64, 128), (2, 160, 192)]
HEAD = f"{'model':8} {'pass':17} {'image':8} {'kernels, bytes, kept: cold':>30} {'warm':>30}"
COUNTS = """
model    pass              image        kernels, bytes, kept: cold                           warm
swin     forward           64x96       348    5,727,158          0     67    4,989,399          0
swin     forward           96x96       351    7,324,448          0     69    6,558,326          0
swin     forward           96x128      351    9,680,501          0     69    8,682,570          0
swin     forward           64x96        67    4,989,399          0     67    4,989,399          0
swin     forward           64x128      348    7,571,026          0     67    6,606,037          0
swin     forward           160x192     353   21,403,320          0     69   19,501,746          0
swin     forward+backward  64x96       544   16,975,409  1,624,691    263   16,237,650  1,624,691
swin     forward+backward  96x96       548   21,640,394  2,110,574    266   20,874,272  2,110,574
swin     forward+backward  96x128      548   28,557,907  2,809,950    266   27,559,976  2,809,950
swin     forward+backward  64x96       263   16,237,650  1,624,691    263   16,237,650  1,624,691
swin     forward+backward  64x128      544   22,405,163  2,165,977    263   21,440,174  2,165,977
swin     forward+backward  160x192     550   62,940,782  6,253,566    266   61,039,208  6,253,566
swin_v2  forward           64x96       279    5,225,106          0    105    5,017,264          0
swin_v2  forward           96x96       279    7,336,976          0    105    7,042,224          0
swin_v2  forward           96x128      279    9,448,144          0    105    9,067,184          0
swin_v2  forward           64x96       105    5,017,264          0    105    5,017,264          0
swin_v2  forward           64x128      278    6,640,272          0    105    6,370,480          0
swin_v2  forward           160x192     279   22,070,064          0    105   21,197,488          0
swin_v2  forward+backward  64x96       556   16,143,122  1,361,532    382   15,935,280  1,361,532
swin_v2  forward+backward  96x96       556   22,754,448  1,932,412    382   22,459,696  1,932,412
swin_v2  forward+backward  96x128      556   29,365,072  2,503,292    382   28,984,112  2,503,292
swin_v2  forward+backward  64x96       382   15,935,280  1,361,532    382   15,935,280  1,361,532
swin_v2  forward+backward  64x128      555   20,564,752  1,743,484    382   20,294,960  1,743,484
swin_v2  forward+backward  160x192     556   68,942,768  5,920,380    382   68,070,192  5,920,380
mvit     forward           64x96       371   17,281,780          0    126   16,154,416          0
mvit     forward           96x96       312   18,774,468          0    126   18,302,704          0
mvit     forward           96x128      313   20,922,996          0    127   20,406,800          0
mvit     forward           64x96       126   16,154,416          0    126   16,154,416          0
mvit     forward           64x128      312   18,038,284          0    126   17,575,024          0
mvit     forward           160x192     313   33,984,724          0    127   33,203,728          0
mvit     forward+backward  64x96       685   45,721,336  5,088,900    440   44,593,972  5,088,900
mvit     forward+backward  96x96       623   51,744,192  5,807,380    437   51,273,908  5,807,380
mvit     forward+backward  96x128      623   58,498,264  6,516,676    437   57,982,068  6,516,676
mvit     forward+backward  64x96       440   44,593,972  5,088,900    440   44,593,972  5,088,900
mvit     forward+backward  64x128      623   49,528,272  5,572,324    437   49,065,012  5,572,324
mvit     forward+backward  160x192     623   99,221,560 10,810,980    437   98,440,564 10,810,980
vitdet   forward           64x96       101      537,816          0     41      523,880          0
vitdet   forward           96x96        70      755,120          0     40      740,872          0
vitdet   forward           96x128      125    1,004,890          0     42      971,330          0
vitdet   forward           64x96        41      523,880          0     41      523,880          0
vitdet   forward           64x128      126      706,506          0     43      680,804          0
vitdet   forward           160x192      73    2,337,464          0     43    2,284,632          0
vitdet   forward+backward  64x96       229    1,960,970    179,432    169    1,947,034    179,432
vitdet   forward+backward  96x96       197    2,659,298    276,552    167    2,645,050    276,552
vitdet   forward+backward  96x128      254    3,379,862    373,890    171    3,346,302    373,890
vitdet   forward+backward  64x96       169    1,947,034    179,432    169    1,947,034    179,432
vitdet   forward+backward  64x128      257    2,466,456    246,308    174    2,440,754    246,308
vitdet   forward+backward  160x192     198    7,162,394    945,432    168    7,109,562    945,432
deit     forward           64x96        26      455,584          0     26      455,584          0
deit     forward           96x96        26      621,952          0     26      621,952          0
deit     forward           96x128       26      788,320          0     26      788,320          0
deit     forward           64x96        26      455,584          0     26      455,584          0
deit     forward           64x128       26      566,496          0     26      566,496          0
deit     forward           160x192      26    1,786,528          0     26    1,786,528          0
deit     forward+backward  64x96       107    1,668,298    154,720    107    1,668,298    154,720
deit     forward+backward  96x96       107    2,154,634    230,464    107    2,154,634    230,464
deit     forward+backward  96x128      107    2,640,970    306,208    107    2,640,970    306,208
deit     forward+backward  64x96       107    1,668,298    154,720    107    1,668,298    154,720
deit     forward+backward  64x128      107    1,992,522    205,216    107    1,992,522    205,216
deit     forward+backward  160x192     107    5,558,986    760,672    107    5,558,986    760,672
"""


def rows_of(name):
    """Lines of the table."""
    with torch.device("meta"):
        model = MODELS[name](drop_path_rate=0.0)
    lines = []
    for step in (FORWARD, TRAIN):
        cold, warm = count_draw(name, model, model, step, SHAPES)
        for (_, h, w), first, again in zip(SHAPES, cold.costs, warm.costs):
            counts = " ".join(f"{cost.kernels:6,} {cost.bytes:12,} {cost.kept:10,}" for cost in (first, again))
            lines.append(f"{name:8} {step:17} {f'{h}x{w}':8} {counts}")
    return lines


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_counts_of_cold_and_warm_passes(name):
    assert rows_of(name) == [line for line in COUNTS.splitlines() if line.split()[:1] == [name]]


if __name__ == "__main__":
    print("\n".join([HEAD, *(line for name in MODELS for line in rows_of(name))]))
