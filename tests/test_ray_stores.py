"""Whether a node's object store is where it should be, told from what a process has mapped."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from stoker.ray.stores import StoreFile, mapped_stores, store_warning

MOUNTS = """22 1 254:0 / / rw,relatime - ext4 /dev/root rw
24 22 0:5 / /dev rw,relatime - devtmpfs udev rw
26 24 0:22 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=65536k
31 22 0:45 / /mnt/fast\\040disk rw - xfs /dev/nvme1 rw
"""
MAPS = """7f0000000000-7f0008000000 rw-s 00000000 00:16 3 {0} (deleted)
7f0008000000-7f0008400000 rw-s 08000000 00:16 3 {0} (deleted)
7f1000000000-7f1000001000 r-xp 00000000 fe:00 9 /usr/lib/python3/plasma_client.so
7f2000000000-7f2000001000 rw-p 00000000 00:00 0 [heap]
"""


@pytest.mark.case("LDR-01", "a store of Ray that lies on a disk is said once, with folder, file system and remedy")
@pytest.mark.parametrize(
    ("path", "filesystem", "is_on_disk"),
    [
        ("/dev/shm/plasmaAbC123", "tmpfs", False),
        ("/tmp/ray/plasmaAbC123", "ext4", True),
        ("/mnt/fast disk/ray/plasmaX", "xfs", True),
    ],
)
def test_the_file_system_under_a_store_decides(tmp_path: Path, path: str, filesystem: str, is_on_disk: bool) -> None:
    (tmp_path / "maps").write_text(MAPS.format(path))
    (tmp_path / "mountinfo").write_text(MOUNTS)
    (store,) = mapped_stores(tmp_path)
    assert store == StoreFile(folder=str(Path(path).parent), filesystem=filesystem, n_bytes=0x8400000)
    assert store.is_on_disk is is_on_disk
    said = store_warning([store], "node-7")
    assert bool(said) is is_on_disk
    if said:
        assert f"on node-7 138 MB of the object store lie on a disk ({store.folder}, {filesystem})" in said
        assert "--shm-size" in said


def test_what_this_process_maps_is_found(tmp_path: Path) -> None:
    before = mapped_stores()  # of a cluster that other tests have
    assert str(tmp_path) not in {store.folder for store in before}
    file = tmp_path / "plasmaTest"
    file.write_bytes(bytes(8192))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 8192):
        (store,) = (store for store in mapped_stores() if store not in before)
        assert (store.folder, store.n_bytes) == (str(tmp_path), 8192)
        assert store.filesystem
    assert mapped_stores(tmp_path / "nowhere") == []
