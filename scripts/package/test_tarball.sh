#!/usr/bin/env bash
# Tests the tarball in chroots: a user without rights and without a network unpacks it and trains a model.
# usage: test_tarball.sh TARBALL SUITE..., for example build/gradtile-0.2.0-linux-x86_64.tar.gz bookworm trixie. Needs root and
# mmdebstrap. A SUITE may be a tar file of a root file system.
set -euo pipefail
limit_s=20
tarball=$(readlink -f "$1")
shift
root=$(mktemp -d /var/tmp/gradtile-chroot-XXXXXX)
clean() {
  umount -q "$root"/*/proc/cpuinfo "$root"/*/proc 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap clean EXIT

# Runs a command as a user without rights, without a network.
as_user() {
  local place=$1
  shift
  unshare --net chroot --userspec=65534:65534 "$place" env -i HOME=/home/user PATH=/usr/bin:/bin sh -c "cd /home/user && $*"
}

# Expects that bin/gradtile fails with one line that contains a text.
expect_refused() {
  local place=$1 text=$2 lines
  if lines=$(as_user "$place" "$3 --version" 2>&1) || [ "$(wc -l <<<"$lines")" -ne 1 ] || [[ $lines != *"$text"* ]]; then
    echo "expected one line with '$text', got: $lines" >&2
    exit 1
  fi
  echo "  refused: $lines"
}

test_in() {
  local place=$1 begin
  as_user "$place" "mkdir 'a folder' && tar -xzf gradtile.tar.gz -C 'a folder' --strip-components=1 && ln -s 'a folder/bin/gradtile' gradtile"
  as_user "$place" ./gradtile doctor
  as_user "$place" "rm -r 'a folder'"
  begin=$(date +%s%N)
  as_user "$place" "mkdir 'a folder' && tar -xzf gradtile.tar.gz -C 'a folder' --strip-components=1
    ./gradtile corpus --characters 200000 --out stories.txt
    ./gradtile train --preset demo --data stories.txt --out run --steps 20 >train.log
    ./gradtile sample run --tokens 40 >sample.txt"
  local ms=$(((($(date +%s%N) - begin)) / 1000000))
  echo "  unpacked, trained 20 steps and sampled in $ms ms"
  [ $ms -le $((limit_s * 1000)) ] || { echo "more than $limit_s s" >&2; exit 1; }

  printf '#!/bin/sh\necho glibc 2.17\n' >"$place/home/user/getconf"
  chmod 755 "$place/home/user/getconf"
  expect_refused "$place" "this system has 2.17" "PATH=/home/user:\$PATH ./gradtile"
  printf '#!/bin/sh\nexit 1\n' >"$place/home/user/getconf"
  expect_refused "$place" "another C library" "PATH=/home/user:\$PATH ./gradtile"
  sed 's/ bmi2 / /' /proc/cpuinfo >"$place/cpuinfo"
  mount --bind "$place/cpuinfo" "$place/proc/cpuinfo"
  expect_refused "$place" "lacks bmi2" ./gradtile
  umount "$place/proc/cpuinfo"
}

for suite in "$@"; do
  echo "$suite"
  place=$root/$(basename "$suite" .tar)
  mkdir "$place"
  if [ -f "$suite" ]; then tar -xf "$suite" -C "$place"; else mmdebstrap --quiet --variant=minbase "$suite" "$place"; fi
  install -d -o 65534 -g 65534 "$place/home/user"
  install -m 644 "$tarball" "$place/home/user/gradtile.tar.gz"
  mount -t proc proc "$place/proc"
  test_in "$place"
  umount "$place/proc"
done
