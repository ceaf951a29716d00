#!/usr/bin/env bash
# prepare.sh COMMIT, in a checkout of main. COMMIT has this folder; its parent's changes against 7da8a497 are the GPU simplifications.
set -eu
commit=$1 base=7da8a497
mkdir -p .git/info out
grep -qsx /out/ .git/info/exclude || echo /out/ >>.git/info/exclude
git archive "$commit" exp/device3 | tar -x -C out
mv out/exp/device3/* out/ && rm -r out/exp
git diff --binary $base "$commit" -- . ':!exp' >out/simpler.patch
t=$(mktemp -d)
mkdir -p $t/include $t/lib
cp /usr/include/pcre2.h /usr/include/utf8proc.h $t/include/
cp -r /usr/include/openssl $t/include/
cp /usr/include/x86_64-linux-gnu/openssl/*.h $t/include/openssl/
cp -L /usr/lib/x86_64-linux-gnu/libpcre2-8.so.0 /usr/lib/x86_64-linux-gnu/libutf8proc.so.2 $t/lib/
tar -C $t -cJf out/pre.tar.xz .
git apply --check out/simpler.patch && echo "the patch applies"
du -sh out
