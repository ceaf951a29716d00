#!/usr/bin/env bash
# Copies the libraries that a bare Debian or Ubuntu lacks into a package, with a list of their licences.
# usage: bundle.sh PREFIX, where PREFIX/libexec/gradtile is the program
set -euo pipefail
prefix=$1
libraries=$prefix/lib/gradtile
documents=$prefix/share/doc/gradtile

# Libraries that stay outside. All others are copied.
stays_outside() {
  case $1 in
    # glibc fits the loader of the machine only. bin/gradtile checks its version.
    ld-linux*|libc.so.*|libm.so.*|libdl.so.*|libpthread.so.*|librt.so.*|libresolv.so.*) ;;
    # Every Debian and Ubuntu has these, because apt needs them. An older copy would break libraries of the system that need a newer one.
    libstdc++.so.*|libgcc_s.so.*) ;;
    # These belong to the driver, to CUDA or to MPI, and are loaded if present.
    libcuda.so.*|libcublas*|libnccl.so.*|libmpi.so.*) ;;
    *) return 1 ;;
  esac
}

# Prints the paths of the libraries that files are linked with, directly or through others.
linked() { ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'; }

# The program loads these at their first use, so ldd does not list them.
loaded() {
  local name
  for name in libpcre2-8.so.0 libutf8proc.so.3 libutf8proc.so.2 libz.so.1 libzstd.so.1; do
    /sbin/ldconfig -p | awk -v name="$name" '$1 == name && /x86-64/ { print $NF; exit }'
  done
  # OpenBLAS is loaded as well, in a build without oneDNN.
  if ! ldd "$prefix/libexec/gradtile" | grep -q libdnnl; then
    /sbin/ldconfig -p | awk '$1 == "libopenblas.so.0" { print $NF; exit }'
  fi
}

# Prints the Debian package that a file belongs to. dpkg may know it by its path with or without /usr.
package_of() {
  local path
  path=$(readlink -f "$1")
  { dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "${path#/usr}" 2>/dev/null || dpkg-query -S "/usr$path"; } | head -n 1 | cut -d: -f1
}

# Prints the licences that a machine-readable copyright file names.
licences_of() {
  sed -n 's/^License: *\([^ ].*\)/\1/p' "$1" | sort -u | paste -s -d ';' | sed 's/;/; /g'
}

mkdir -p "$libraries" "$documents/licences"
list=$documents/CONTENTS
{
  echo "gradtile is under the MIT licence (file copyright). This package also has these libraries of $(. /etc/os-release && echo "$PRETTY_NAME"),"
  echo "unchanged. Their licences are in the folder licences."
  echo
} >"$list"
mapfile -t at_use < <(loaded)
while read -r path; do
  name=$(basename "$path")
  ! stays_outside "$name" || continue
  cp -L "$path" "$libraries/$name"
  package=$(package_of "$path")
  copyright=/usr/share/doc/$package/copyright
  cp -L "$copyright" "$documents/licences/$package"
  licences=$(licences_of "$copyright")
  printf '%s  %s %s  %s\n' "$name" "$package" "$(dpkg-query -W -f='${Version}' "$package" | head -n 1)" "${licences:-see licences/$package}" >>"$list"
done < <({ linked "$prefix/libexec/gradtile" "${at_use[@]}"; printf '%s\n' "${at_use[@]}"; } | sort -u)
