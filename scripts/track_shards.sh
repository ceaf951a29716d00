#!/bin/bash
# Makes llm.c's shards for bench/track_anchor.py and bench/variants/track.txt from the sources that scripts/linux_corpus.sh
# unpacks in DIRECTORY/source: train.bin for STEPS steps of 128 x 1,024 tokens, val.bin with 2,097,152 targets, and
# tokenizer.json (32,768 tokens). The text is seven folders of drivers and sound, divided by file; files are cut at line ends into
# pieces of about 4 KiB, which are shuffled, because modded-nanogpt's script reads its data in order. DIRECTORY/train.pieces.xz
# and val.pieces.xz, which are written first, replace the sources on another machine.
#     scripts/track_shards.sh DIRECTORY [STEPS]     # default: 900
set -euo pipefail
directory=${1:?usage: scripts/track_shards.sh DIRECTORY [STEPS]}
steps=${2:-900}
gradtile=$(realpath "${GRADTILE:-$(cd "$(dirname "$0")/.." && pwd)/build/release/gradtile}")
[ -x "$gradtile" ] || { echo "track_shards.sh: no program $gradtile; run scripts/build.sh, or set GRADTILE" >&2; exit 1; }
cd "$directory"

# A piece is a line, in which \001 stands for the ends of its lines.
cut_into_pieces() {
    tr '\n' '\0' | LC_ALL=C xargs -0 awk 'function flush() { if (n) print piece; piece = ""; n = 0 }
        FNR == 1 { flush() }
        { gsub(/\001/, ""); piece = piece $0 "\001"; n += length($0) + 1; if (n >= 4096) flush() }
        END { flush() }'
}
# Always the same random order. `shuf` with a repeated string as its source leaves neighbours and folders together.
in_random_order() { awk 'BEGIN { x = 1 } { x = x * 48271 % 2147483647; print x "\t" $0 }' | LC_ALL=C sort -n | cut -f2-; }
# Two tokens more than steps need: the last target, and one that the script wants to see behind it.
shorten() {
    local tokens=$2 held
    held=$(od -An -t d4 -j 8 -N 4 "$1")
    ((held >= tokens)) || { echo "track_shards.sh: $1 has $held tokens; $tokens are needed" >&2; exit 1; }
    truncate -s $((1024 + 2 * tokens)) "$1"
    printf "$(printf '\\x%02x' $((tokens & 255)) $((tokens >> 8 & 255)) $((tokens >> 16 & 255)) $((tokens >> 24)))" |
        dd of="$1" bs=1 seek=8 conv=notrunc status=none
}

if [ ! -f train.pieces.xz ]; then
    # Files above 256 KiB are mostly generated tables of registers.
    find source/drivers/{gpu,net,media,clk,pinctrl,scsi} source/sound -type f -size -257k -size +0 -printf '%s %p\n' |
        LC_ALL=C sort -k2 | in_random_order |
        awk 'NR <= 400 { print $2 > "val.files"; next } { sum += $1 } sum <= 307000000 { print $2 > "train.files" }'
    # Neighbours are alike, so sorted files compress better.
    for part in val train; do
        LC_ALL=C sort $part.files | cut_into_pieces | xz -T2 --block-size=160MiB --lzma2=preset=7,dict=192MiB >$part.part
        mv $part.part $part.pieces.xz
    done
fi
for part in val train; do
    xz -dc -T0 $part.pieces.xz | in_random_order >$part.shuffled
    sed 's/$/<|endoftext|>/' $part.shuffled | tr -d '\n' | tr '\001' '\n' >$part.txt
done
if [ ! -f tokenizer.json ]; then
    head -12000 train.shuffled | tr -d '\n' | tr '\001' '\n' >sample.txt
    "$gradtile" tokenizer train --vocabulary 32768 --data sample.txt --out tokenizer.json
fi
for part in val train; do
    "$gradtile" tokenize --tokenizer tokenizer.json --format llmc --separator '<|endoftext|>' --out $part.bin $part.txt
done
shorten train.bin $((steps * 131072 + 2))
shorten val.bin 2097154
rm -f {val,train}.{shuffled,txt} sample.txt
