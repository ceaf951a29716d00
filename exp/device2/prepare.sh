#!/usr/bin/env bash
# prepare.sh COMMIT, in a checkout of main. COMMIT has this folder and the kernel changes, which it makes on top of fac55fbd.
# Before, for the aarch64 tests: a cross build (scripts/cross_aarch64.sh without its last line), gcc -O2 -static -o /tmp/ship_wrapper wrapper.c,
# make_pack.py SOURCE PACK, tar cJf out/aarch64.tar.xz -C PACK .
set -eu
commit=$1 base=fac55fbd
mkdir -p .git/info out
grep -qsx /out/ .git/info/exclude || echo /out/ >>.git/info/exclude
git archive "$commit" exp/device2 | tar -x -C out
mv out/exp/device2/* out/ && rm -r out/exp
git diff --binary $base "$commit" -- . ':!exp' >out/row_ranges.patch
t=$(mktemp -d)
mkdir -p $t/include $t/lib
cp /usr/include/pcre2.h /usr/include/utf8proc.h $t/include/
cp -r /usr/include/openssl $t/include/
cp /usr/include/x86_64-linux-gnu/openssl/*.h $t/include/openssl/
cp -L /usr/lib/x86_64-linux-gnu/libpcre2-8.so.0 /usr/lib/x86_64-linux-gnu/libutf8proc.so.2 $t/lib/
tar -C $t -cJf out/pre.tar.xz .
git apply --check out/row_ranges.patch && echo "the patch applies"
du -sh out
