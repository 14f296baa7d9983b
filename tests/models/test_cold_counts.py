"""Exact counts of a nano model of every family over five batches: first passes (cold) and passes right after (warm).

After a change of what a pass costs, ``python tests/models/test_cold_counts.py`` prints `COUNTS` anew. A warm count
that rises wants a reason.
"""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

if __name__ == "__main__":  # run by hand, not by pytest
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "scripts")]

from counting import FORWARD, TRAIN, count_draw
from vitdense import MViT, Swin, SwinV2, ViT

STAGES = {"embed_dims": 16, "depths": (2, 2), "num_heads": (1, 2)}
LAYERS = {"embed_dims": 32, "depth": 2, "num_heads": 2}
MODELS = {
    "swin": partial(Swin, STAGES, out_indices=(0, 1)),
    "swin_v2": partial(SwinV2, STAGES, window_size=4, out_indices=(0, 1)),
    "mvit": partial(MViT, {**STAGES, "num_heads": 1}, out_indices=(0, 1)),
    "vitdet": partial(
        ViT, LAYERS, window_size=(2, 3), global_indices=(1,), relative_position=True, img_size=96, out_indices=(1,)
    ),
}
# A new size; one new side; the other; both sides seen, but not together; all new.
SHAPES = [(2, 64, 96), (2, 96, 96), (2, 96, 128), (2, 64, 128), (2, 160, 192)]
HEAD = f"{'model':8} {'pass':17} {'image':8} {'kernels, bytes, kept: cold':>30} {'warm':>30}"
COUNTS = """
model    pass              image        kernels, bytes, kept: cold                           warm
swin     forward           64x96       148    5,344,032          0     69    5,064,860          0
swin     forward           96x96        97    6,945,794          0     69    6,755,792          0
swin     forward           96x128      100    9,125,092          0     69    8,897,132          0
swin     forward           64x128       79    6,873,360          0     69    6,685,088          0
swin     forward           160x192     108   20,520,239          0     69   20,092,108          0
swin     forward+backward  64x96       346   16,361,456  1,578,016    267   16,082,284  1,578,016
swin     forward+backward  96x96       295   21,471,870  2,088,704    267   21,281,868  2,088,704
swin     forward+backward  96x128      298   28,217,044  2,759,328    267   27,989,084  2,759,328
swin     forward+backward  64x128      277   21,383,868  2,093,568    267   21,195,596  2,093,568
swin     forward+backward  160x192     306   63,153,695  6,190,368    267   62,725,564  6,190,368
swin_v2  forward           64x96       193    5,071,182          0    113    4,986,712          0
swin_v2  forward           96x96       161    7,116,836          0    113    7,013,592          0
swin_v2  forward           96x128      143    9,148,872          0    113    9,040,472          0
swin_v2  forward           64x128      123    6,411,912          0    113    6,341,208          0
swin_v2  forward           160x192     170   21,466,120          0    113   21,182,296          0
swin_v2  forward+backward  64x96       490   16,463,806  1,348,284    410   16,379,336  1,348,284
swin_v2  forward+backward  96x96       458   23,260,692  1,915,324    410   23,157,448  1,915,324
swin_v2  forward+backward  96x128      440   30,043,960  2,482,364    410   29,935,560  2,482,364
swin_v2  forward+backward  64x128      420   20,976,120  1,727,676    410   20,905,416  1,727,676
swin_v2  forward+backward  160x192     467   70,844,024  5,876,412    410   70,560,200  5,876,412
mvit     forward           64x96       173   14,831,750          0    117   14,679,780          0
mvit     forward           96x96       126   16,815,092          0    117   16,810,468          0
mvit     forward           96x128      145   18,911,014          0    118   18,895,630          0
mvit     forward           64x128      117   16,088,484          0    117   16,088,484          0
mvit     forward           160x192     145   31,619,686          0    118   31,584,046          0
mvit     forward+backward  64x96       474   40,837,306  4,986,880    418   40,685,336  4,986,880
mvit     forward+backward  96x96       433   47,336,546  5,703,072    420   47,332,586  5,703,072
mvit     forward+backward  96x128      434   53,963,330  6,411,360    420   53,951,906  6,411,360
mvit     forward+backward  64x128      424   45,146,394  5,469,632    420   45,146,170  5,469,632
mvit     forward+backward  160x192     447   93,926,394 10,695,520    420   93,890,754 10,695,520
vitdet   forward           64x96        79      527,944          0     41      522,216          0
vitdet   forward           96x96        49      741,344          0     40      738,952          0
vitdet   forward           96x128       62      998,264          0     43      991,000          0
vitdet   forward           64x128       44      693,448          0     44      693,448          0
vitdet   forward           160x192      71    2,295,444          0     43    2,276,162          0
vitdet   forward+backward  64x96       199    1,898,362    178,408    161    1,892,634    178,408
vitdet   forward+backward  96x96       168    2,565,970    274,504    159    2,563,578    274,504
vitdet   forward+backward  96x128      184    3,283,818    371,800    165    3,276,554    371,800
vitdet   forward+backward  64x128      168    2,391,866    245,000    168    2,391,866    245,000
vitdet   forward+backward  160x192     193    6,980,086    941,720    165    6,960,804    941,720
"""


def rows_of(name):
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
@pytest.mark.parametrize(
    "name", [n if n in ("swin", "vitdet") else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_counts_of_cold_and_warm_passes(name):
    assert rows_of(name) == [line for line in COUNTS.splitlines() if line.split()[:1] == [name]]


if __name__ == "__main__":
    print("\n".join([HEAD, *(line for name in MODELS for line in rows_of(name))]))
