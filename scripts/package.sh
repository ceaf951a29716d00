#!/usr/bin/env bash
# Makes build/gradtile-VERSION-linux-x86_64.tar.gz, which runs without an installation, and Debian packages.
# Arguments are passed to cmake: scripts/package.sh -DGRADTILE_CUDA=OFF leaves the GPU code out.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh file  # cpack looks for programs with `file`
mkdir -p build
cmake --preset all-gpus "$@" >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
grep '^-- gradtile:' build/configure.log || true
cmake --build --preset all-gpus --target gradtile_program

version=$(sed -n 's/^project(gradtile VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=gradtile-$version-linux-x86_64
prefix=build/package/$name
rm -rf build/package
for component in program mpi; do
  cmake --install build/all-gpus --prefix "$prefix" --component $component --strip >/dev/null
done
mkdir "$prefix/libexec"
mv "$prefix/bin/gradtile" "$prefix/libexec/gradtile"
scripts/package/bundle.sh "$prefix"

glibc_minor=$(objdump -T "$prefix/libexec/gradtile" "$prefix"/lib/gradtile/*.so* | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1 | cut -d. -f2)
sed "s/@GLIBC_MINOR@/$glibc_minor/" scripts/package/launcher.sh >"$prefix/bin/gradtile"
chmod 755 "$prefix/bin/gradtile"
"$prefix/bin/gradtile" --version >/dev/null

tar -C build/package --owner=0 --group=0 --sort=name -czf "build/$name.tar.gz" "$name"
(cd build && rm -f gradtile*.deb && cpack -G DEB --config all-gpus/CPackConfig.cmake >package/cpack.log 2>&1) || { cat build/package/cpack.log; exit 1; }
rm -rf build/_CPack_Packages
echo "needs glibc 2.$glibc_minor; MB:"
(cd build && du --apparent-size -BMB "$name.tar.gz" gradtile*.deb)
