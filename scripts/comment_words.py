#!/usr/bin/env python3
"""Prints how often "of" occurs among the words of comments, for each room and in all.

Chains of "of" ("the ring of the sums of dQ") are where compound nouns read better ("the dQ accumulator ring"). A sentence should
have at most two.
"""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ("core", "attention", "layers", "train", "tools", "tests", "examples")


def comment_text(path):
    """The text of // comments, outside of strings."""
    lines = []
    for line in path.read_text().splitlines():
        line = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        if "//" in line:
            lines.append(line.split("//", 1)[1].lstrip("/<"))
    return " ".join(lines)


def count(paths):
    words = [word.lower() for path in paths for word in re.findall(r"[A-Za-z']+", comment_text(path))]
    return words.count("of"), len(words)


def main():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    total = [0, 0]
    for room in ROOMS:
        paths = [ROOT / f for f in files if f.startswith(room + "/") and f.endswith((".h", ".cpp", ".cu", ".cuh"))]
        found, words = count(paths)
        total = [total[0] + found, total[1] + words]
        print(f"{room:10} {found:6} of {words:7} words  {100 * found / max(words, 1):.1f}%")
    print(f"{'all':10} {total[0]:6} of {total[1]:7} words  {100 * total[0] / total[1]:.1f}%")


if __name__ == "__main__":
    main()
