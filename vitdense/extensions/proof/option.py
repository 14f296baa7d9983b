"""``vitdense export``: writes a proof beside the program."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmengine.config import Config

    from vitdense.mm.cli.export import Made


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-proof", dest="proof", action="store_false", help="no NAME.proof, for vitdense verify")


def after(args: argparse.Namespace, program: Path, model: "Made", cfg: "Config") -> None:
    """Write ``NAME.proof`` beside a program that `vitdense.runtime` reads."""
    from mmengine.logging import print_log

    from vitdense.extensions.proof.make import write_proof
    from vitdense.extensions.proof.part import PARTS, proof_of_part

    if model.wish.to != "onnx":  # a proof of this name is another program's
        return
    path = program.with_suffix(".proof")
    path.unlink(missing_ok=True)  # the proof of an earlier program
    if not args.proof or model.wish.maps:
        return
    if not model.is_read:
        print_log(f"{path}: not written; the program takes normalised arrays, no photos or bands", "current")
        return
    proofs = [proof_of_part(program, part, model) for part in model.parts]
    write_proof(path, proofs)
    blocks = sum(len(array) - 1 for proof in proofs for name, array in proof.items() if name.endswith("sizes0"))
    print_log(
        f"{path} ({path.stat().st_size / 1e6:.1f} MB): {len(PARTS)} photos, {blocks} blocks; on the machine that runs "
        f"the program: vitdense verify {program}",
        "current",
    )
