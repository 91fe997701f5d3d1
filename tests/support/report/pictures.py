"""`python -m tests.support.report.pictures`: takes the pictures of docs/report.md and README.md.

Runs the project of `shown_runs` and looks at its page; `--page FOLDER` looks at an earlier page.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

import msgspec
from PIL import Image

from pytest_trainsafe.report.html.document import Document, read_document
from pytest_trainsafe.report.html.write import write_page
from tests.support.report.browser import Look, chromium
from tests.support.report.shown_runs import run_project, write_project

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "report"

UNREDUCED, MASK = "test_unreduced[tp2-sp-float64]", "test_mask[tp2-float64]"

#: Each picture: its Point, "" for the page before one is chosen, and the title of its panel, "" for
#: the window.
PICTURES = {
    "sweep": ("", ""),
    "point": (UNREDUCED, ""),
    "dataflow": (UNREDUCED, "Dataflow"),
    "kinds": (UNREDUCED, "Layers and kinds of tensors"),
    "curves": (UNREDUCED, "Errors of param_grad, in order"),
    "values": (MASK, "Values: decoder.layers.0.self_attention.linear_qkv.output"),
    "ranks": (UNREDUCED, "What each rank holds"),
    "collectives": (UNREDUCED, "Collectives of the steps"),
    "draws": ("test_drops[dp2-float64]", "Random draws of every rank"),
    "hang": ("test_hang", "Collectives of every rank"),
    "resume": ("test_resumed[dp2]", "Steps of the three Runs"),
    "proof": ("test_proof[tp2]", "What is proved"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, metavar="FOLDER", help="Look at this page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if given.page is None:
            write_project(folder)
            print(run_project(folder, "--trainsafe-report=out").stdout[-1000:])
        page = write_page(_without_paths(given.page or folder / "out"), folder / "page")
        FOLDER.mkdir(exist_ok=True)
        with chromium() as browser:
            look = Look(browser.new_page(viewport={"width": 1180, "height": 760}), page)
            for name, (point, title) in PICTURES.items():
                look.point(f"test_shown.py::{point}" if point else "")
                _save(FOLDER / f"{name}.png", _seen(look, title))


def _without_paths(page: Path) -> Document:
    """The data of a page without the folders of this machine."""
    text = msgspec.json.encode(read_document(page)).decode()
    for folder in (f"{ROOT}/", f"{page.absolute().parent}/"):
        text = text.replace(folder, "")
    return msgspec.json.decode(text, type=Document)


def _seen(look: Look, title: str) -> bytes:
    if not title:
        return look.page.screenshot()
    heading = look.page.get_by_role("heading", name=title)
    figure = look.page.locator("figure", has=heading).first
    figure.scroll_into_view_if_needed()
    box = figure.evaluate(
        """e => {
          const { left, top, width, height } = e.getBoundingClientRect();
          return { x: left - 14, y: top + scrollY - 8, width: width + 28, height: height + 16 };
        }"""
    )
    return look.page.screenshot(clip=box, full_page=True)


def _save(path: Path, png: bytes) -> None:
    """Writes a picture with few colours and without empty margins, which keeps it small."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    empty = Image.new("RGB", picture.size, (255, 255, 255))
    box = _difference(picture, empty)
    picture = picture.crop((0, 0, min(picture.width, box[2] + 12), min(picture.height, box[3] + 8)))
    picture.quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


def _difference(picture: Image.Image, other: Image.Image) -> tuple[int, int, int, int]:
    from PIL import ImageChops

    return ImageChops.difference(picture, other).getbbox() or (0, 0, *picture.size)


if __name__ == "__main__":
    main()
