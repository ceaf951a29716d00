#!/bin/sh
# Checks that this machine can run the program, then starts it.
set -u
glibc_minor=@GLIBC_MINOR@  # the newest symbols that the program and its libraries need are of glibc 2.@GLIBC_MINOR@

refuse() {
  echo "gradtile: $1" >&2
  exit 1
}

glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || glibc=
case $glibc in
  "glibc 2."*) ;;
  *) refuse "this program needs glibc 2.$glibc_minor or later, and this system has another C library; build from source" ;;
esac
found=${glibc#glibc 2.}
[ "${found%%.*}" -ge "$glibc_minor" ] ||
  refuse "this program needs glibc 2.$glibc_minor or later, and this system has 2.$found; use a newer system or build from source"

flags=
while read -r key rest; do
  [ "$key" != flags ] || { flags=" ${rest#*:} "; break; }
done </proc/cpuinfo
for flag in avx2 bmi1 bmi2 f16c fma abm movbe; do
  case $flags in
    *" $flag "*) ;;
    *) refuse "this program needs an x86-64-v3 processor, and this one lacks $flag; build from source (scripts/build.sh)" ;;
  esac
done

prefix=$(dirname "$(dirname "$(readlink -f "$0")")")
exec "$prefix/libexec/gradtile" "$@"
