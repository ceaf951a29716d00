#!/bin/bash
# usage: build.sh NAME [flags]; compiles exp/NAME.cu to /tmp/NAME
n=$1; shift; out=${OUTNAME:-$n}
cd /work/wt/gpux.real
nice -n 5 nvcc -std=c++20 -O3 -DGRADTILE_HAVE_CUDA=1 -DGRADTILE_FLOAT16=0 -gencode arch=compute_90a,code=sm_90a -I /tmp/incx -I exp --expt-relaxed-constexpr -Xptxas -v -Xcompiler -static-libstdc++ -Xcompiler -static-libgcc "$@" exp/$n.cu -o /tmp/$out 2>&1 | grep -v "^$" | c++filt > /tmp/$out.log
grep -E "error|warning" /tmp/$out.log | head -20
grep -A2 "Compiling entry" /tmp/$out.log | grep -vE "^--|Function prop" | sed -E 's/.*Compiling entry function .(.*). for.*/\1/' | cut -c1-150
date -u
