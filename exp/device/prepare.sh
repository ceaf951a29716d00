#!/usr/bin/env bash
# prepare.sh COMMIT, in a checkout of main. COMMIT has this folder and the kernel changes, which it makes on top of 767fa0d2.
set -eu
commit=$1 base=767fa0d2
grep -qx /out/ .git/info/exclude || echo /out/ >>.git/info/exclude
mkdir -p out
git archive "$commit" exp | tar -x -C out
cp -r out/exp/device/. out/ && git diff --binary $base "$commit" -- . ':!exp' >out/both.patch
# Headers and libraries that the machine lacks.
t=$(mktemp -d)
mkdir -p $t/include $t/lib
cp /usr/include/pcre2.h /usr/include/utf8proc.h $t/include/
cp -r /usr/include/openssl $t/include/
cp /usr/include/x86_64-linux-gnu/openssl/*.h $t/include/openssl/
cp -L /usr/lib/x86_64-linux-gnu/libpcre2-8.so.0 /usr/lib/x86_64-linux-gnu/libutf8proc.so.2 $t/lib/
tar -C $t -cJf out/pre.tar.xz .
if [ ! -f out/fa3.gz ]; then
  python3 -m pip download -q --no-deps -d /tmp/fa3 dew-flash-attn-cu13 && unzip -p /tmp/fa3/dew_flash_attn_cu13*.whl dew_flash_attn/libdew_flash_attn3.so | gzip -9 >out/fa3.gz
fi
cp ../shared/measure/fa3_anchor.py out/
du -sh out
