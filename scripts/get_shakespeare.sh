#!/usr/bin/env bash
# Downloads tiny Shakespeare (1.1 MB, from Karpathy's char-rnn) to data/tinyshakespeare.txt and verifies its checksum.
set -euo pipefail

url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
file=$(cd "$(dirname "$0")/.." && pwd)/data/tinyshakespeare.txt

is_known() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }
if is_known "$file"; then
  echo "$file exists already"
  exit 0
fi

mkdir -p "$(dirname "$file")"
part=$(mktemp "$file.XXXXXX")
trap 'rm -f "$part"' EXIT
if command -v curl >/dev/null; then
  fetch=(curl --fail --silent --show-error --location --max-time 120 --output "$part" "$url")
elif command -v wget >/dev/null; then
  fetch=(wget --quiet --timeout=60 --tries=2 --output-document="$part" "$url")
else
  echo "get_shakespeare.sh: needs curl or wget (apt-get install curl)" >&2
  exit 1
fi
if ! "${fetch[@]}"; then
  echo "get_shakespeare.sh: cannot download $url. Without a network, use any UTF-8 text as --data FILE, for example" \
       "the output of 'gradtile corpus --characters 1000000 --out FILE'" >&2
  exit 1
fi
if ! is_known "$part"; then
  echo "get_shakespeare.sh: $url: wrong content (sha256 $(sha256sum "$part" | cut -d' ' -f1)," \
       "expected $sha256)" >&2
  exit 1
fi
chmod 644 "$part"
mv "$part" "$file"
echo "$file: train on it with --preset shakespeare-char-cpu --data data/tinyshakespeare.txt"
