"""Certificates for tests: a CA, one that nobody knows, and two of the first CA's for servers."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificates(folder: Path) -> None:
    """Makes ca.pem, stranger.pem, right.pem (for localhost) and wrong.pem (for another name), each with its .key."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=30)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for ca in ("ca", "stranger"):
        openssl("req", "-x509", *curve, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}", "-days", "2")
    for name, host in (("right", "localhost"), ("wrong", "elsewhere.example")):
        (folder / "names").write_text(f"subjectAltName=DNS:{host}")
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={host}")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", f"{name}.pem"),
            *("-days", "2", "-extfile", "names"),
        )
