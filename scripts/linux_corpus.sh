#!/bin/bash
# Makes token files from the sources of the Linux kernel that Debian packages: train.bin, val.bin and
# tokenizer.json (32,768 tokens) in DIRECTORY. Anyone with Debian 12 can rebuild them without an account, and
# measurements on them need no other data. Texts are divided by file: no file is in both parts.
#     scripts/linux_corpus.sh DIRECTORY [TRAIN_MB] [VAL_MB]     # default: 80 5
set -euo pipefail
directory=${1:?usage: scripts/linux_corpus.sh DIRECTORY [TRAIN_MB] [VAL_MB]}
train_mb=${2:-80} val_mb=${3:-5}
package=linux-source-6.1
gradtile=${GRADTILE:-$(cd "$(dirname "$0")/.." && pwd)/build/release/gradtile}
[ -x "$gradtile" ] || { echo "linux_corpus.sh: no program $gradtile; run scripts/build.sh, or set GRADTILE" >&2; exit 1; }
mkdir -p "$directory"
cd "$directory"

if [ ! -d source ]; then
    ls ${package}_*.deb >/dev/null 2>&1 || apt-get download "$package"
    dpkg-deb -x ${package}_*.deb package
    mkdir source.part
    tar -xf package/usr/src/$package.tar.xz -C source.part --strip-components=1 --wildcards '*.c' '*.h' '*.rst'
    mv source.part source
    rm -r package
fi

# Files above 256 KiB are mostly generated tables of registers. The order is mixed and always the same; neighbours often stay together.
find source -type f -size -257k -printf '%s %p\n' | LC_ALL=C sort -k2 | shuf --random-source=<(yes linux) |
    awk -v train=$((train_mb * 1000000)) -v val=$((val_mb * 1000000)) '
        $1 == 0 { next }
        { sum += $1; sub(/^[0-9]+ /, "") }
        sum <= train { print > "train.files"; next }
        sum <= train + val { print > "val.files" }'

[ -f tokenizer.json ] ||
    xargs -a train.files -d '\n' -n 100000 -s 2000000 "$gradtile" tokenizer train --vocabulary 32768 --out tokenizer.json --data
for part in train val; do
    xargs -a $part.files -d '\n' -n 100000 -s 2000000 "$gradtile" tokenize --tokenizer tokenizer.json --format nanogpt \
        --separator '<|endoftext|>' --out $part.bin
done
