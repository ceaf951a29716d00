#!/usr/bin/env bash
# Tests scripts/release.sh in a small repository whose scripts/package.sh only writes two files.
# usage: check_release.sh SOURCE_DIR SCRATCH
set -euo pipefail
source=$1 scratch=$2
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@localhost GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@localhost GIT_CONFIG_GLOBAL=/dev/null
rm -rf "$scratch"
mkdir -p "$scratch/scripts"
cd "$scratch"
git init -q .
cp "$source/scripts/release.sh" scripts/
cat >scripts/package.sh <<'EOF'
#!/usr/bin/env bash
set -euo pipefail
version=$(sed -n 's/^project(gradtile VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
mkdir -p build
echo tar >build/gradtile-$version-linux-x86_64.tar.gz
echo deb >build/gradtile_${version}_amd64.deb
echo "$@" >build/arguments
EOF
chmod +x scripts/package.sh
echo 'project(gradtile VERSION 1.2.0 LANGUAGES C CXX)' >CMakeLists.txt
printf '# Changelog\n\n## [Unreleased]\n\n### Added\n\n- New.\n\n## [1.2.0]\n\n- Old.\n' >CHANGELOG.md
echo /build/ >.gitignore
git add -A
git commit -q -m start

check() { "$@" || { echo "failed: $*" >&2; exit 1; }; }
# Expects a failure with one line that contains a text, which leaves the tree as it was.
refused() {
  local text=$1 output
  shift
  if output=$(scripts/release.sh "$@" 2>&1); then echo "not refused: $*" >&2; exit 1; fi
  check [ "$(wc -l <<<"$output")" -eq 1 ]
  check [ "${output/"$text"/}" != "$output" ]
  check [ -z "$(git status --porcelain --untracked-files=no)" ]
}

refused "expected MAJOR.MINOR.PATCH" 1.3
refused "expected MAJOR.MINOR.PATCH"
refused "has a section [1.2.0] already" 1.2.0
echo x >new
refused "uncommitted changes" 1.3.0
rm new

scripts/release.sh 1.3.0 --dry-run -DX=1 >/dev/null
check [ "$(cat build/arguments)" = -DX=1 ]
check [ -z "$(git status --porcelain)" ]
check [ -z "$(git tag)" ]
check grep -q 'VERSION 1.2.0' CMakeLists.txt
check [ "$(cat build/release-1.3.0/NOTES.md)" = "$(printf '### Added\n\n- New.')" ]
(cd build/release-1.3.0 && sha256sum --quiet -c SHA256SUMS)
check [ "$(wc -l <build/release-1.3.0/SHA256SUMS)" -eq 3 ]

scripts/release.sh 1.3.0 >/dev/null
check [ -z "$(git status --porcelain)" ]
check [ "$(git describe)" = v1.3.0 ]
check grep -q 'VERSION 1.3.0' CMakeLists.txt
check [ "$(grep -c '^## \[' CHANGELOG.md)" -eq 3 ]
check grep -q "^## \[1.3.0\] - 20" CHANGELOG.md
refused "the tag v1.3.0 exists" 1.3.0
refused "is empty" 1.4.0
