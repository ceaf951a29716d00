#!/usr/bin/env python3
"""Prints how many bytes of a program (or object) each GPU architecture's code takes: as stored, and uncompressed.
usage: fatbin_sizes.py FILE..."""
import collections, struct, sys

stored, full, count, flags_seen = (collections.Counter() for _ in range(4))
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    position = 0
    while (position := data.find(b"\x50\xed\x55\xba", position)) >= 0:
        magic, version, header, size = struct.unpack_from("<IHHQ", data, position)
        if version != 1 or header != 16 or position + header + size > len(data):
            position += 4
            continue
        end = position + header + size
        entry = position + header
        while entry + 64 <= end:
            kind, _, entry_header, entry_size, compressed, _, minor, major, arch = struct.unpack_from("<HHIQIIHHI", data, entry)
            flags, = struct.unpack_from("<Q", data, entry + 40)
            uncompressed, = struct.unpack_from("<Q", data, entry + 56)
            key = ("PTX " if kind == 1 else "code " if kind == 2 else f"kind {kind} ") + str(arch)
            stored[key] += entry_header + entry_size
            full[key] += uncompressed or entry_size
            count[key] += 1
            flags_seen[(key, hex(flags))] += 1
            entry += entry_header + entry_size
        position = end
for key in sorted(stored):
    print(f"{key}: {count[key]} entries, {stored[key]} bytes stored, {full[key]} uncompressed")
print("all:", sum(stored.values()), "stored,", sum(full.values()), "uncompressed; flags:", dict(flags_seen))
