"""Exact counts of a nano model of every family over six batches: first passes (cold) and passes right after (warm).

After a change of what a pass costs, ``python tests/backbones/test_cold_counts.py`` prints `COUNTS` anew. A warm count
that rises wants a reason.
"""

import sys
from pathlib import Path

import pytest
import torch

if __name__ == "__main__":  # run by hand, not by pytest
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "tools"), str(root / "tests")]

from test_contract import BACKBONES

from counting import FORWARD, TRAIN, count_draw

MODELS = {
    "swin": BACKBONES["swin"],
    "swin_v2": BACKBONES["swin_v2"],
    "mvit": BACKBONES["mvit"],
    "vitdet": BACKBONES["vit, windows, relative positions"],
    "deit": BACKBONES["vit"],
}
# A new size; sides of which one is new; the first again; both sides seen, but not together; all new.
SHAPES = [(2, 64, 96), (2, 96, 96), (2, 96, 128), (2, 64, 96), (2, 64, 128), (2, 160, 192)]
HEAD = f"{'model':8} {'pass':17} {'image':8} {'kernels, bytes, kept: cold':>30} {'warm':>30}"
COUNTS = """
model    pass              image        kernels, bytes, kept: cold                           warm
swin     forward           64x96       694    9,317,816          0    133    8,479,397          0
swin     forward           96x96       697   11,257,856          0    135   10,385,608          0
swin     forward           96x128      697   14,438,243          0    135   13,286,911          0
swin     forward           64x96       133    8,479,397          0    133    8,479,397          0
swin     forward           64x128      694   11,872,010          0    133   10,760,666          0
swin     forward           160x192     701   29,128,780          0    137   26,990,770          0
swin     forward+backward  64x96     1,082   32,121,141  2,442,809    521   31,282,722  2,442,809
swin     forward+backward  96x96     1,086   37,761,072  3,017,144    524   36,888,824  3,017,144
swin     forward+backward  96x128    1,086   47,268,730  3,975,051    524   46,117,398  3,975,051
swin     forward+backward  64x96       521   31,282,722  2,442,809    521   31,282,722  2,442,809
swin     forward+backward  64x128    1,082   39,816,300  3,213,142    521   38,704,956  3,213,142
swin     forward+backward  160x192   1,091   90,368,726  8,295,662    527   88,230,716  8,295,662
swin_v2  forward           64x96       665    8,671,656          0    211    8,425,480          0
swin_v2  forward           96x96       667   11,504,172          0    213   11,154,252          0
swin_v2  forward           96x128      667   13,940,418          0    213   13,499,072          0
swin_v2  forward           64x96       211    8,425,480          0    211    8,425,480          0
swin_v2  forward           64x128      608   10,275,292          0    209    9,972,496          0
swin_v2  forward           160x192     668   30,516,978          0    213   29,504,680          0
swin_v2  forward+backward  64x96     1,218   29,794,052  1,954,356    764   29,547,876  1,954,356
swin_v2  forward+backward  96x96     1,221   38,656,204  2,713,976    767   38,306,284  2,713,976
swin_v2  forward+backward  96x128    1,221   46,202,070  3,368,684    767   45,760,724  3,368,684
swin_v2  forward+backward  64x96       764   29,547,876  1,954,356    764   29,547,876  1,954,356
swin_v2  forward+backward  64x128    1,159   34,791,488  2,391,868    760   34,488,692  2,391,868
swin_v2  forward+backward  160x192   1,222   98,470,126  7,805,652    767   97,457,828  7,805,652
mvit     forward           64x96       629    7,238,228          0    212    7,020,120          0
mvit     forward           96x96       513   11,002,684          0    215   10,745,492          0
mvit     forward           96x128      513   13,133,468          0    215   12,835,296          0
mvit     forward           64x96       212    7,020,120          0    212    7,020,120          0
mvit     forward           64x128      294    8,362,832          0    204    8,335,184          0
mvit     forward           160x192     513   30,628,872          0    215   29,923,304          0
mvit     forward+backward  64x96     1,204   25,211,240  2,069,196    787   24,993,132  2,069,196
mvit     forward+backward  96x96     1,094   36,478,548  3,278,480    796   36,221,356  3,278,480
mvit     forward+backward  96x128    1,094   43,591,116  4,056,232    796   43,292,944  4,056,232
mvit     forward+backward  64x96       787   24,993,132  2,069,196    787   24,993,132  2,069,196
mvit     forward+backward  64x128      862   29,532,232  2,567,024    772   29,504,584  2,567,024
mvit     forward+backward  160x192   1,090   97,787,624 10,026,964    792   97,085,716 10,026,964
vitdet   forward           64x96       142      924,072          0     82      910,136          0
vitdet   forward           96x96       111    1,310,752          0     81    1,296,504          0
vitdet   forward           96x128      168    1,770,558          0     85    1,736,998          0
vitdet   forward           64x96        82      910,136          0     82      910,136          0
vitdet   forward           64x128      169    1,232,786          0     86    1,207,084          0
vitdet   forward           160x192     114    4,078,728          0     84    4,025,896          0
vitdet   forward+backward  64x96       407    3,410,888    286,376    347    3,396,952    286,376
vitdet   forward+backward  96x96       375    4,697,248    435,880    345    4,683,000    435,880
vitdet   forward+backward  96x128      436    6,142,684    599,170    353    6,109,124    599,170
vitdet   forward+backward  64x96       347    3,396,952    286,376    347    3,396,952    286,376
vitdet   forward+backward  64x128      439    4,399,622    397,220    356    4,373,920    397,220
vitdet   forward+backward  160x192     376   13,316,568  1,471,448    346   13,263,736  1,471,448
deit     forward           64x96        49      758,272          0     49      758,272          0
deit     forward           96x96        49    1,051,264          0     49    1,051,264          0
deit     forward           96x128       49    1,344,256          0     49    1,344,256          0
deit     forward           64x96        49      758,272          0     49      758,272          0
deit     forward           64x128       49      953,600          0     49      953,600          0
deit     forward           160x192      49    3,102,208          0     49    3,102,208          0
deit     forward+backward  64x96       218    2,831,656    232,896    218    2,831,656    232,896
deit     forward+backward  96x96       218    3,758,632    346,176    218    3,758,632    346,176
deit     forward+backward  96x128      218    4,685,608    459,456    218    4,685,608    459,456
deit     forward+backward  64x96       218    2,831,656    232,896    218    2,831,656    232,896
deit     forward+backward  64x128      218    3,449,640    308,416    218    3,449,640    308,416
deit     forward+backward  160x192     218   10,247,464  1,139,136    218   10,247,464  1,139,136
"""


def rows_of(name):
    """Lines of the table."""
    with torch.device("meta"):
        model = MODELS[name]()
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
