#!/usr/bin/env bash
# Carries out the Dockerfile's instructions in chroots, where no Docker is, then trains in the last one without a network.
# Needs root and mmdebstrap. An image debian:SUITE is a new chroot of SUITE.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$(mktemp -d /var/tmp/gradtile-image-XXXXXX)
clean() {
  umount -q "$root"/*/proc 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap clean EXIT

declare -A value stage
workdir=/ place= entry=

fail() {
  echo "test_image.sh: $1" >&2
  exit 1
}

in_image() {
  local network=$1
  shift
  $network chroot "$place" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c "cd $workdir && $*"
}

# FROM IMAGE [AS NAME]
from() {
  local image=$1 suite
  for name in "${!value[@]}"; do image=${image//\$\{$name\}/${value[$name]}}; done
  [[ $image == debian:* ]] || fail "no chroot can be made of the image $image"
  suite=${image#debian:}
  place=$root/${3:-last} workdir=/
  [ -z "${3:-}" ] || stage[$3]=$place
  mkdir "$place"
  mmdebstrap --quiet --variant=minbase "${suite%-slim}" "$place"
  cp /etc/resolv.conf "$place/etc/resolv.conf"
  mount -t proc proc "$place/proc"
}

# COPY [--from=STAGE] SOURCE TARGET
copy() {
  if [[ $1 == --from=* ]]; then
    mkdir -p "$place$(dirname "$3")"
    cp -a "${stage[${1#--from=}]}$2" "$place$3"
  else
    [ "$*" = ". ." ] || fail "only 'COPY . .' is known, not COPY $*"
    tar -c --exclude-from=<(sed 's|^|./|' .dockerignore) . | tar -x -C "$place$workdir"
  fi
}

while read -r instruction rest; do
  [ -z "$instruction" ] || [ "$instruction" = "#" ] || echo "== $instruction $rest"
  case $instruction in
    "" | "#"*) ;;
    ARG) value[${rest%%=*}]=${rest#*=} ;;
    FROM) from $rest ;;
    WORKDIR) workdir=$rest && mkdir -p "$place$rest" ;;
    COPY) copy $rest ;;
    RUN) in_image "" "$rest" </dev/null ;;
    ENTRYPOINT) entry=$(tr -d '[]",' <<<"$rest") ;;
    *) fail "unknown instruction $instruction" ;;
  esac
done <Dockerfile

[ -n "$entry" ] || fail "the Dockerfile has no ENTRYPOINT"
for arguments in doctor "corpus --characters 200000 --out stories.txt" "train --preset demo --data stories.txt --out run --steps 20" "sample run --tokens 40"; do
  echo "== docker run gradtile $arguments"
  in_image "unshare --net" "$entry $arguments" </dev/null
done
echo "size of the last stage's /opt/gradtile: $(du -sm "$place/opt/gradtile" | cut -f1) MB"
