#!/usr/bin/env python3
"""Reads a gradtile checkpoint with h5py and numpy: python3 read_checkpoint.py FILE

Prints the step, the settings and every tensor with its shape, type and range. The format: checkpoint_format.md.
"""
import json
import os
import struct
import sys

import h5py
import numpy as np

HEADER = 128


class Reader:
    """Little-endian numbers and texts, one after another."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def numbers(self, kinds):
        values = struct.unpack_from("<" + kinds, self.data, self.at)
        self.at += struct.calcsize("<" + kinds)
        return values

    def text(self, length):
        self.at += length
        return self.data[self.at - length:self.at].decode()


def read_user_block(path):
    """Version, step and length as the header has them, and the manifest."""
    with open(path, "rb") as file:
        header = file.read(HEADER)
        if not header.startswith(b"gradtile checkpoint\r\n\x1a\n"):
            raise SystemExit(f"{path}: not a gradtile checkpoint")
        version, _body_crc, step, length = struct.unpack_from("<IIqQ", header, 32)
        if version not in (1, 2, 3):
            raise SystemExit(f"{path}: format version {version}")
        (manifest_length,) = struct.unpack_from("<Q", header, 72)
        return version, step, length, Reader(file.read(manifest_length))


def read_manifest(manifest, step):
    """Of version 3: {name: (shape, checksum)} of the tensors, and the names and lengths of the parts."""
    tensors = {}
    for _ in range(manifest.numbers("I")[0]):
        name = manifest.text(manifest.numbers("H")[0])
        kind, axes = manifest.numbers("BB")
        shape = manifest.numbers(f"{axes}q")
        checksum, pieces = manifest.numbers("IQ")
        manifest.numbers("QQ" * pieces)
        if kind != 0:
            tensors[name] = (shape, checksum)
    save, count = manifest.numbers("QI")
    parts = [(f"step_{step:08}.part-{i}-of-{count}-{save:016x}.h5", manifest.numbers("QI")[0]) for i in range(count)]
    return tensors, parts


def datasets(file):
    """(name, dataset) of every tensor or piece; h5py checks the fletcher32 of what it reads. bfloat16 arrives as
    float32."""
    found = []

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and not name.endswith("/json"):
            found.append((name, item))

    file.visititems(visit)
    return found


def tensors_in_parts(path, manifest, step):
    """(name, array, checksum) of every tensor, from its pieces NAME/BEGIN in the parts."""
    tensors, parts = read_manifest(manifest, step)
    pieces = {name: [] for name in tensors}
    for part, _length in parts:
        with h5py.File(os.path.join(os.path.dirname(os.path.realpath(path)), part), "r") as file:
            for piece, item in datasets(file):
                name, begin = piece.rsplit("/", 1)
                pieces[name].append((int(begin), item[()]))
    for name, (shape, checksum) in sorted(tensors.items()):
        found = [values for _begin, values in sorted(pieces[name], key=lambda piece: piece[0])]
        yield name, np.concatenate(found).reshape(shape) if found else np.zeros(shape), checksum


def main(path):
    version, step, length, manifest = read_user_block(path)
    with h5py.File(path, "r") as file:
        print(f"step {step}, {length} bytes")
        for group in ("config", "data", "rng", "meta"):
            print(f"{group}: {json.dumps(json.loads(file[group + '/json'][0]), sort_keys=True)}")
        if version == 3:
            tensors = tensors_in_parts(path, manifest, step)
        else:
            tensors = ((name, item[()], int(item.attrs["crc32c"])) for name, item in datasets(file))
        for name, array, checksum in tensors:
            values = np.asarray(array, dtype=np.float64)
            extent = f"{values.min():.9g} to {values.max():.9g}" if values.size else "empty"
            print(f"{name} {list(array.shape)} {array.dtype} crc32c {checksum:08x} sum {values.sum():.17g} {extent}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
