#!/usr/bin/env python3
"""Reads a gradtile checkpoint with h5py and numpy: python3 read_checkpoint.py FILE

Prints the step, the settings and every tensor with its shape, type and range. The format: checkpoint_format.md.
"""
import json
import struct
import sys

import h5py
import numpy as np

HEADER = 128


def read_header(path):
    """Step and length as the header has them."""
    with open(path, "rb") as file:
        block = file.read(HEADER)
    if not block.startswith(b"gradtile checkpoint\r\n\x1a\n"):
        raise SystemExit(f"{path}: not a gradtile checkpoint")
    version, _body_crc, step, length = struct.unpack_from("<IIqQ", block, 32)
    if version not in (1, 2):
        raise SystemExit(f"{path}: format version {version}")
    return step, length


def tensors(file):
    """(name, array) of every tensor; h5py checks the fletcher32 of what it reads. bfloat16 arrives as float32."""
    found = []

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and not name.endswith("/json"):
            found.append((name, item))

    file.visititems(visit)
    return found


def main(path):
    step, length = read_header(path)
    with h5py.File(path, "r") as file:
        print(f"step {step}, {length} bytes")
        for group in ("config", "data", "rng", "meta"):
            print(f"{group}: {json.dumps(json.loads(file[group + '/json'][0]), sort_keys=True)}")
        for name, item in tensors(file):
            values = np.asarray(item[()], dtype=np.float64)
            extent = f"{values.min():.9g} to {values.max():.9g}" if values.size else "empty"
            print(f"{name} {list(item.shape)} {item.dtype} crc32c {int(item.attrs['crc32c']):08x} sum {values.sum():.17g} {extent}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
