#!/usr/bin/env bash
# Makes a release: sets the version, turns the CHANGELOG's section Unreleased into the version's, makes the packages with their
# checksums and notes in build/release-VERSION, commits and tags. It pushes nothing.
# usage: scripts/release.sh VERSION [--dry-run] [arguments of cmake]: --dry-run makes the files, and restores the tree
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "release.sh: $1" >&2
  exit 1
}
version=${1:-}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "version '$version': expected MAJOR.MINOR.PATCH"
shift
dry_run=
if [ "${1:-}" = --dry-run ]; then dry_run=yes; shift; fi
[ -z "$(git status --porcelain)" ] || fail "the tree has uncommitted changes"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || fail "the tag v$version exists"
[ "$(grep -c '^## \[Unreleased\]$' CHANGELOG.md)" = 1 ] || fail "CHANGELOG.md: expected one section [Unreleased]"
! grep -q "^## \[$version\]" CHANGELOG.md || fail "CHANGELOG.md: has a section [$version] already"

restore() { git checkout -q -- CMakeLists.txt CHANGELOG.md; }
trap restore EXIT  # also after a failure; harmless once the files are committed
sed -i "s/^project(gradtile VERSION [0-9.]*/project(gradtile VERSION $version/" CMakeLists.txt
sed -i "s/^## \[Unreleased\]$/## [Unreleased]\n\n## [$version] - $(date -u +%F)/" CHANGELOG.md

scripts/package.sh "$@"
out=build/release-$version
rm -rf "$out"
mkdir "$out"
cp build/gradtile-"$version"-linux-x86_64.tar.gz build/gradtile*_"$version"_*.deb "$out"
awk -v heading="## [$version]" 'index($0, "## [") == 1 { inside = index($0, heading) == 1; next } inside' CHANGELOG.md | sed '1{/^$/d}' >"$out/NOTES.md"
grep -q '[^[:space:]]' "$out/NOTES.md" || fail "CHANGELOG.md: the section [Unreleased] is empty"
(cd "$out" && sha256sum gradtile* NOTES.md >SHA256SUMS && cat SHA256SUMS)

if [ -n "$dry_run" ]; then
  echo "release.sh: dry run; $out has the files, and nothing was committed"
else
  git commit -q -m "Version $version" CMakeLists.txt CHANGELOG.md
  git tag -a "v$version" -m "gradtile $version"
  echo "release.sh: committed and tagged v$version; publish it with: git push --follow-tags, and the files of $out"
fi
