"""A folder that is a link gives way to the folder that it leads to; others keep their names."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.core.links import unlinked


def test_a_link_is_replaced_by_its_target_and_no_other_folder_is_renamed(tmp_path: Path) -> None:
    for name in ("package", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "package" / "linked").symlink_to("../real")
    (tmp_path / "package" / "plain").mkdir()
    (tmp_path / "around").symlink_to(
        "package"
    )  # an installation may lie in a folder that is a link

    folders = [str(tmp_path / name) for name in ("package/linked", "around/plain", "missing")]

    assert unlinked(folders) == [str(tmp_path / "real"), *folders[1:]]
