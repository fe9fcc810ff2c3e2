#!/usr/bin/env bash
# Makes a release of the commit that is checked out: checks it, runs everything that must be green, makes the packages in
# dist, and tags the commit. It pushes nothing. docs/contribute/releasing.md says what comes before and after.
# usage: tools/release.sh VERSION (1.2.3 or 1.2.3-rc.1); RELEASE_CI=COMMAND runs something else than .ci/run, ARCH=amd64 makes fewer packages
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-}
refuse() {
	echo "release: $*" >&2
	exit 1
}

[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z]+(\.[0-9a-z]+)*)?$ ]] || refuse "VERSION=1.2.3 is needed, and is '$version'"
clean() { [ -z "$(git status --porcelain)" ] || refuse "the work tree is not clean $1: commit or remove what git status shows"; }
clean "before the release"
git rev-parse -q --verify "refs/tags/v$version" >/dev/null && refuse "the tag v$version exists already"
grep -qE "^	version += \"$version\"$" cmd/engine/version.go || refuse "cmd/engine/version.go does not say version $version"
heading="^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$"
grep -qE "$heading" CHANGELOG.md || refuse "CHANGELOG.md has no heading '## [$version] - YYYY-MM-DD'"
notes=$(awk -v begin="## [$version] - " 'index($0, begin) == 1 {on=1; next} /^## \[/ {on=0} on' CHANGELOG.md)
grep -q '^- ' <<<"$notes" || refuse "CHANGELOG.md says nothing about $version"

${RELEASE_CI:-.ci/run}
make package VERSION="$version" ARCH="${ARCH:-}"
(cd dist && sha256sum --quiet --check SHA256SUMS)
clean "after the tests and packages"
# verbatim: git would take the headings of the notes for comments
git tag --annotate --cleanup=verbatim --message="Penstock $version
$notes" "v$version"
echo "v$version is tagged, and its packages are in dist. Nothing was pushed: see docs/contribute/releasing.md"
